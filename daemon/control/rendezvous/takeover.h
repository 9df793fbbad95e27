// How a new coordinator takes over what its predecessor has formed: it listens first, leaves what
// serves as it is, so that nobody notices, and goes on with the rest from what the members remember.
#pragma once

#include "daemon/control/rendezvous/changes.h"
#include "daemon/control/rendezvous/claim_table.h"
#include "daemon/control/rendezvous/epoch_setup.h"
#include "daemon/control/rendezvous/formation_reports.h"
#include "daemon/control/rendezvous/group_table.h"
#include "daemon/control/rendezvous/node_table.h"

namespace epd {

class Takeover {
 public:
  Takeover(const RendezvousOptions& options, const Changes& changes, const NodeTable& nodes,
           ClaimTable& claims, GroupTable& groups, const EpochSetup& epochs,
           FormationReports& reports)
      : grace_end_(options.started_at + options.start_grace),
        expected_(options.expected),
        persistent_(options.persistent),
        changes_(changes),
        nodes_(nodes),
        claims_(claims),
        groups_(groups),
        epochs_(epochs),
        reports_(reports) {}

  // ---- the grace: reports are only kept, and nodes go on as they were ----
  bool InGrace() const { return !all_reported_ && changes_.now() < grace_end_; }
  absl::Time grace_end() const { return grace_end_; }
  // Keeps the newest of each node; the grace is over once every expected one has reported.
  void Hold(const NodeReport& report);
  void Forget(const NodeId& node) { held_.erase(node); }
  // All that was held: to be taken at once, so that a group that was READY is adopted as it is.
  std::vector<NodeReport> TakeHeld();
  // While groups that come with what was held may be adopted.
  void SetAdopting(bool adopting) { adopting_ = adopting; }
  bool adopting() const { return adopting_; }

  // ---- what operators have made ----
  // After the nodes were heard: what they serve has members, and keeps them.
  void RestorePersistent();
  // What is made and not closed, restored or still to be.
  std::vector<PersistentGroup> Persistent() const;

  // ---- groups that a predecessor has formed ----
  // Places a claim of such a group's member; one that comes too late fails with ABORTED.
  void Recover(const ClaimKey& key);
  // After what was held was taken: groups that go on here hear nothing; the others hear why they form again.
  void ExplainReforming();
  // Once for a complete group: whether every rank's member and worker say the same of one formation
  // and one epoch, and READY, and no member of another tenant of the name knows of a newer one. Then it is READY here, too.
  bool Adopt(ClusterGroup& group);
  // Takes the bases that the members' nodes remember.
  //   ABORTED  they are not of one formation
  absl::Status RecoverBases(ClusterGroup& group) const;

 private:
  bool IsOver(const std::string& name, Epoch epoch) const;

  absl::Time grace_end_;
  std::set<NodeId> expected_;
  std::vector<PersistentGroup> persistent_;  // To be restored.
  bool all_reported_ = false;
  bool adopting_ = false;
  std::map<NodeId, NodeReport> held_;
  const Changes& changes_;
  const NodeTable& nodes_;
  ClaimTable& claims_;
  GroupTable& groups_;
  const EpochSetup& epochs_;
  FormationReports& reports_;
};

}  // namespace epd
