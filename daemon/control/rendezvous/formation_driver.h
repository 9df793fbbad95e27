// How a group goes from complete to READY, and what throws it back.
#pragma once

#include "daemon/control/rendezvous/changes.h"
#include "daemon/control/rendezvous/claim_table.h"
#include "daemon/control/rendezvous/epoch_floors.h"
#include "daemon/control/rendezvous/epoch_setup.h"
#include "daemon/control/rendezvous/group_table.h"
#include "daemon/control/rendezvous/node_table.h"
#include "daemon/control/rendezvous/takeover.h"

namespace epd {

class FormationDriver {
 public:
  FormationDriver(const Changes& changes, const NodeTable& nodes, ClaimTable& claims,
                  GroupTable& groups, const EpochFloors& floors, EpochSetup& epochs,
                  Takeover& takeover)
      : changes_(changes),
        nodes_(nodes),
        claims_(claims),
        groups_(groups),
        floors_(floors),
        epochs_(epochs),
        takeover_(takeover) {}

  // Takes every step that the group can take now; it may be gone afterwards.
  void Advance(ClusterGroup& group);
  // Forms it again, if a node says that it cannot go on. A report's other news may follow from that.
  void EndIfBroken(ClusterGroup& group);

 private:
  // A lost worker ends the epoch, and with it the formations of all tenants that are in it:
  // whichever active one is looked at first begins the next epoch, the others follow.
  void CheckWorkers(ClusterGroup& group);
  // Of a complete group, towards READY.
  void Form(ClusterGroup& group);
  // Brings it into an epoch whose communicator is there. Returns whether that is done; false: not
  // yet, or the group has ended.
  bool SetUp(ClusterGroup& group);
  bool SessionsDrained(const ClusterGroup& group) const;
  // Starts the next formation, which counts from a cut over the sessions that stay. False: as Recut.
  bool Start(ClusterGroup& group);
  // Whether every worker serves the formation.
  //   what a worker has failed with
  absl::StatusOr<bool> Served(ClusterGroup& group) const;
  void AdvanceReady(ClusterGroup& group);
  // Whether a member has begun executions that the last cut did not know of.
  bool Recounted(const ClusterGroup& group) const;
  // Makes the bases anew from what the members of the formation before have begun by now: what they began late was of
  // that one, so whoever is in this one alone is not behind them.
  // Returns whether that is done; false: no message could carry them, and the group has ended.
  bool Recut(ClusterGroup& group);
  // RESOURCE_EXHAUSTED: as CutOff.
  absl::StatusOr<std::vector<ExecutionBase>> Cut(const ClusterGroup& group) const;
  // What a node says about a formation that it cannot go on with.
  const GroupWork* BrokenWork(ClusterGroup& group) const;
  void FormAgain(ClusterGroup& group, const absl::Status& why);
  void AdvanceDraining(ClusterGroup& group);

  const Changes& changes_;
  const NodeTable& nodes_;
  ClaimTable& claims_;
  GroupTable& groups_;
  const EpochFloors& floors_;
  EpochSetup& epochs_;
  Takeover& takeover_;
};

}  // namespace epd
