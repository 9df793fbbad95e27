// The worker executor on the CPU: moves an operation's rows between its ranks' regions.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/backend/cpu/memfd_arenas.h"
#include "daemon/backend/move_job.h"
#include "kernels/plan_reader.h"
#include "kernels/pull_in_parts.h"
#include "kernels/region/region_layout.h"

namespace epd {

// Writes every rank's output (proto/epd/v1/region_layout.h), some at a time, so that others' rows can be moved in between. The
// stages and plan copies are client memory and may change while they are read: every plan is copied before it
// is validated, and the kernels check each stage where they read it. Not thread-safe, but its parts may be done on different
// threads.
class RowMove {
 public:
  // What is handed in outlives it.
  RowMove(MemfdArenas& arenas, const MoveGroup& group, const MoveJob& job)
      : arenas_(arenas), group_(group), job_(job) {}

  // Reads and writes about `bytes` more. None: there is more to do, and no output is complete. Else it has ended:
  //   INVALID_ARGUMENT  a rank's sizes do not fit its region, its plan or the group
  //   ABORTED           a rank's plan is of another epoch
  //   DATA_LOSS         a rank's plan or stage is corrupt; the message names the rank
  //   RESOURCE_EXHAUSTED  overflow without drop, or no address space for mapping an arena
  std::optional<absl::Status> Some(uint64_t bytes);

 private:
  // Of all ranks, one after another.
  enum class Step { kMap, kTakeCounts, kGiveCounts, kTakePlans, kMakeOutputs, kDone };

  absl::Status Go(uint64_t bytes);
  absl::Status Map();
  void TakeCounts();
  absl::Status GiveCounts(uint64_t bytes);
  // Copies and checks the plan of a local rank, and finds its stage behind it.
  absl::Status TakePlan(uint64_t bytes);
  absl::Status BeginPlan();
  size_t PlanBytes() const;
  void CopyPlan(uint64_t bytes);
  absl::Status EndPlan();
  absl::Status MakeOutput(uint64_t bytes);
  absl::Status BeginPull();
  // The step is done with this rank.
  void NextRank(Step after_the_last);
  size_t CountsBytes() const { return size_t{group_.spec.num_experts} * sizeof(int32_t); }
  // Where the rank's output goes.
  absl::StatusOr<RegionLayout> Output() const;
  char* Out() const { return bases_[rank_] + job_.parts[rank_].out_offset; }
  char* Region() const { return bases_[rank_] + job_.parts[rank_].stage_offset; }

  MemfdArenas& arenas_;
  const MoveGroup& group_;
  const MoveJob& job_;
  Step step_ = Step::kMap;
  size_t rank_ = 0;
  size_t done_ = 0;                 // Bytes of what is copied for the rank.
  std::vector<char*> bases_;        // [R] of the arenas.
  std::unique_ptr<char[]> counts_;  // [R, E], of a prepare.
  std::vector<std::unique_ptr<uint64_t[]>>
      copies_;                          // [R] plans, until the rank's output is complete.
  std::vector<RoutingPlanView> plans_;  // [R]
  std::vector<StageRef> stages_;        // [R]
  std::optional<PlanReader> reader_;    // Of the rank's plan, once it is copied.
  std::unique_ptr<PullInParts> pull_;   // Into the rank's output.
};

// A whole move, on the calling thread.
absl::Status MoveRowsOnCpu(MemfdArenas& arenas, const MoveGroup& group, const MoveJob& job);

}  // namespace epd
