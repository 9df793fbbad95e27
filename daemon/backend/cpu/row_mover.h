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
  // Of plans, which are copied twice where they are more: their ranks may be many, and so may the moves that wait for their turn.
  static constexpr uint64_t kKeptBytes = uint64_t{16} << 20;

  // What is handed in outlives it.
  RowMove(MemfdArenas& arenas, const MoveGroup& group, const MoveJob& job,
          uint64_t kept_bytes = kKeptBytes)
      : arenas_(arenas), group_(group), job_(job), keeps_bytes_(kept_bytes) {}

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
  // Of a local rank finds the stage, which stands behind its plan.
  absl::Status TakePlan(uint64_t bytes);
  // Copies and checks the rank's plan.
  absl::Status ReadPlan(uint64_t bytes);
  absl::Status CopyPlan(uint64_t bytes);
  size_t PlanBytes() const;
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
  uint64_t keeps_bytes_;  // So many more of plans.
  Step step_ = Step::kMap;
  size_t rank_ = 0;
  size_t done_ = 0;                 // Bytes of what is copied for the rank.
  std::vector<char*> bases_;        // [R] of the arenas.
  std::unique_ptr<char[]> counts_;  // [R, E], of a prepare.
  // [R] plans; null: not yet, or not any more.
  std::vector<std::unique_ptr<uint64_t[]>> copies_;
  std::vector<RoutingPlanView> plans_;  // [R]
  bool has_plan_ = false;               // The rank's, checked.
  std::vector<StageRef> stages_;        // [R]
  std::optional<PlanReader> reader_;    // Of the rank's plan, once it is copied.
  std::unique_ptr<PullInParts> pull_;   // Into the rank's output.
};

// A whole move, on the calling thread.
absl::Status MoveRowsOnCpu(MemfdArenas& arenas, const MoveGroup& group, const MoveJob& job);

}  // namespace epd
