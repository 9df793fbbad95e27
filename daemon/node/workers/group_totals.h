// What a worker has done for each group since the group was made, over all formations and all runs of the worker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "daemon/core/ids.h"
#include "proto/epd/v1/handover.pb.h"
#include "proto/epd/v1/worker.pb.h"

namespace epd {

// Adds up what runs of one worker say of their formations. No figure falls, and a group that has ended keeps its own for a
// while. What a run counts after its last snapshot is lost with it. Pure.
class GroupTotals {
 public:
  // As the fields of WorkerSnapshot.Tenant.
  struct Counts {
    uint64_t num_operations = 0;
    uint64_t num_failed = 0;
    uint64_t num_failed_calls = 0;
    uint64_t bytes_moved = 0;
    std::vector<uint64_t> expert_routes = {};
  };

  // Remembers the groups that were told of last.
  explicit GroupTotals(size_t max_groups = 4096) : max_groups_(max_groups) {}

  // `run`: of the worker that says it.
  void Take(Incarnation run, const v1::WorkerSnapshot& snapshot);
  // Calls that epd failed in the worker's place; of no consequence for a group that no worker has told of.
  void AddFailedCalls(GroupId group, uint64_t num_calls);

  // Zeros for a group that is not known.
  Counts Of(GroupId group) const;

  void Save(v1::HandoverWorker& out) const;
  void Restore(const v1::HandoverWorker& in);

 private:
  struct Group {
    Counts total;
    std::map<Formation, Counts> told;  // What is in `total` of formations of this run.
    uint64_t heard = 0;                // The number of the last snapshot that told of it.
  };

  const size_t max_groups_;
  Incarnation run_;
  uint64_t num_snapshots_ = 0;
  std::map<GroupId, Group> groups_;
};

}  // namespace epd
