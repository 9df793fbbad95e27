// The epochs of a group: which workers serve its ranks, and how these get a communicator.
#pragma once

#include "absl/status/statusor.h"
#include "daemon/control/rendezvous/claim_table.h"
#include "daemon/control/rendezvous/cluster_group.h"
#include "daemon/control/rendezvous/epoch_floors.h"
#include "daemon/control/rendezvous/group_table.h"
#include "daemon/control/rendezvous/node_table.h"
#include "daemon/control/used_ids.h"

namespace epd {

class EpochSetup {
 public:
  EpochSetup(const NodeTable& nodes, const ClaimTable& claims, GroupTable& groups,
             EpochFloors& floors)
      : nodes_(nodes), claims_(claims), groups_(groups), floors_(floors) {}

  // Binds workers to the epoch as they come up; names those that are not the bound ones any more,
  // with their nodes, or nothing.
  std::string LostWorkers(ClusterGroup& group);
  // Begins the next epoch with the workers of the group's holders; `why` the one before is over.
  void Begin(const ClusterGroup& group, const absl::Status& why);
  // The holders' workers become the communicator's.
  void Bind(const ClusterGroup& group, ClusterCommunicator& communicator) const;

  // Brings a complete group into the present epoch, or a new one if that is not to be.
  //   INVALID_ARGUMENT, UNIMPLEMENTED  its ranks are elsewhere than another tenant's, or on a CPU
  //                                    and on GPUs
  absl::Status Enter(ClusterGroup& group);
  // Compares the nodes, gets a unique id and has the communicator initialised. Returns whether that
  // is done. After an error the epoch is stale.
  absl::StatusOr<bool> Connect(const ClusterGroup& group);

 private:
  bool NeedsNew(const ClusterGroup& group) const;
  // Why its ranks cannot be in one epoch, and why they cannot be in one with those of `other`.
  absl::Status CompareRanks(const ClusterGroup& group) const;
  absl::Status CompareTenants(const ClusterGroup& group, const ClusterGroup& other) const;
  absl::Status CompareWorkers(const ClusterGroup& group) const;
  // Why the members of the epoch cannot share a unique id; empty when they can.
  std::string WhyNoId(const ClusterCommunicator& communicator) const;
  // Whether the unique id, or that there is none, is decided.
  absl::StatusOr<bool> DecideId(const ClusterGroup& group);
  absl::Status TakeId(const ClusterGroup& group, const GroupWork& work);
  absl::StatusOr<bool> Initialise(const ClusterGroup& group);

  const NodeTable& nodes_;
  const ClaimTable& claims_;
  GroupTable& groups_;
  EpochFloors& floors_;
  UsedIds used_ids_;
};

}  // namespace epd
