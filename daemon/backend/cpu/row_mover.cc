#include "daemon/backend/cpu/row_mover.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/backend/kernel_status.h"
#include "daemon/backend/move_routing.h"
#include "kernels/gather_reduce_rows.h"
#include "kernels/routing_plan.h"
#include "kernels/scatter_rows.h"
#include "proto/epd/v1/operation_kind.h"
#include "proto/epd/v1/region_layout.h"

namespace epd {
namespace {

absl::Status FromKernel(const KernelError& error, size_t rank) {
  if (error.ok()) return absl::OkStatus();
  return ToStatus(error, absl::StrCat("output of rank ", rank, ": "));
}

// One operation in work: mapped regions, private plans.
class Mover {
 public:
  Mover(MemfdArenas& arenas, const MoveGroup& group, const MoveJob& job)
      : arenas_(arenas), group_(group), job_(job) {}

  absl::Status Run();

 private:
  absl::Status Map();
  absl::Status GatherCounts();
  // Copies and checks the plan of a local rank, and finds its stage behind it.
  absl::Status TakePlan(size_t rank);
  absl::Status Scatter(size_t rank);
  absl::Status Gather(size_t rank);
  // Where the rank's output goes.
  absl::StatusOr<RegionLayout> Output(size_t rank) const;
  float* OutWeights(size_t rank, const RegionLayout& layout) const;
  char* Out(size_t rank) const { return bases_[rank] + job_.parts[rank].out_offset; }
  char* Region(size_t rank) const { return bases_[rank] + job_.parts[rank].stage_offset; }

  MemfdArenas& arenas_;
  const MoveGroup& group_;
  const MoveJob& job_;
  std::vector<char*> bases_;                         // [R] of the arenas.
  std::vector<std::unique_ptr<uint64_t[]>> copies_;  // [R] plans.
  std::vector<RoutingPlanView> plans_;               // [R]
  std::vector<StageRef> stages_;                     // [R]
};

absl::Status Mover::Map() {
  for (const MovePart& part : job_.parts) {
    absl::StatusOr<char*> base = arenas_.Map(part.arena);
    if (!base.ok()) return base.status();
    bases_.push_back(*base);
  }
  return absl::OkStatus();
}

absl::Status Mover::Run() {
  if (absl::Status status = Map(); !status.ok()) return status;
  if (job_.kind == shm::Kind::kPrepare) return GatherCounts();
  const size_t num_ranks = job_.parts.size();
  copies_.resize(num_ranks);
  plans_.resize(num_ranks);
  stages_.resize(num_ranks);
  for (size_t rank = 0; rank < num_ranks; ++rank) {
    if (!job_.parts[rank].local) {
      stages_[rank] = StageRef{.base = Region(rank), .bytes = job_.parts[rank].stage_bytes};
    } else if (absl::Status status = TakePlan(rank); !status.ok()) {
      return status;
    }
  }
  const bool scatters = Scatters(job_.kind);
  for (size_t rank = 0; rank < num_ranks; ++rank) {
    if (!job_.parts[rank].local) continue;
    const absl::Status status = scatters ? Scatter(rank) : Gather(rank);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Mover::GatherCounts() {
  const size_t row_bytes = size_t{group_.spec.num_experts} * sizeof(int32_t);
  const size_t num_ranks = job_.parts.size();
  std::vector<char> all(row_bytes * num_ranks);
  for (size_t rank = 0; rank < num_ranks; ++rank) {
    std::memcpy(all.data() + rank * row_bytes, Region(rank), row_bytes);
  }
  for (size_t rank = 0; rank < num_ranks; ++rank) {
    if (!job_.parts[rank].local) continue;
    if (absl::Status status = Output(rank).status(); !status.ok()) return status;
    std::memcpy(Out(rank), all.data(), all.size());
  }
  return absl::OkStatus();
}

absl::StatusOr<RegionLayout> Mover::Output(size_t rank) const {
  const RegionLayout layout = LayoutOf(group_, job_, rank, RegionStorage::kHostWorker);
  if (job_.parts[rank].out_bytes >= layout.out_bytes) return layout;
  return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " announced an output of ",
                                                 job_.parts[rank].out_bytes, " bytes, expected ",
                                                 layout.out_bytes));
}

float* Mover::OutWeights(size_t rank, const RegionLayout& layout) const {
  if (!job_.has_weights) return nullptr;
  return reinterpret_cast<float*>(Out(rank) + layout.out_weights_at);
}

// The used part of a plan says itself how long it is; the copy takes what a plan of this group can
// have at most.
absl::Status Mover::TakePlan(size_t rank) {
  const MovePart& part = job_.parts[rank];
  const RoutingSpec spec = RoutingOf(group_, job_);
  if (KernelError error = CheckRoutingSpec(spec); !error.ok()) return FromKernel(error, rank);
  const size_t bytes = std::min<size_t>(part.stage_bytes, RoutingPlanBytes(spec));
  copies_[rank] = std::make_unique<uint64_t[]>(bytes / sizeof(uint64_t) + 1);
  std::memcpy(copies_[rank].get(), Region(rank), bytes);
  const ViewPlanArgs args{
      .plan = copies_[rank].get(),
      .bytes = bytes,
      .spec = spec,
      .rank = static_cast<int32_t>(rank),
      .ids = {.group_id = group_.group_id, .epoch = group_.epoch, .plan_id = job_.plan_id}};
  if (KernelError error = ViewRoutingPlan(args, &plans_[rank]); !error.ok()) {
    return FromKernel(error, rank);
  }
  const uint64_t begin = shm::StageOffset(plans_[rank].used_bytes);
  if (begin > part.stage_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " announced ", part.stage_bytes,
                                                   " bytes of stage, its plan alone takes ",
                                                   begin));
  }
  stages_[rank] = StageRef{.base = Region(rank) + begin, .bytes = part.stage_bytes - begin};
  return absl::OkStatus();
}

absl::Status Mover::Scatter(size_t rank) {
  const MovePart& part = job_.parts[rank];
  const absl::StatusOr<RegionLayout> output = Output(rank);
  if (!output.ok()) return output.status();
  return FromKernel(
      PullScatter(PullScatterArgs{.plan = &plans_[rank],
                                  .sources = stages_.data(),
                                  .row_bytes = job_.row_bytes,
                                  .capacity = static_cast<int64_t>(part.recv_capacity),
                                  .recv_rows = Out(rank),
                                  .recv_weights = OutWeights(rank, *output),
                                  .drop_on_overflow = group_.spec.drop_on_overflow,
                                  .own_rows = nullptr,
                                  .own_weights = nullptr}),
      rank);
}

absl::Status Mover::Gather(size_t rank) {
  const MovePart& part = job_.parts[rank];
  const absl::StatusOr<RegionLayout> output = Output(rank);
  if (!output.ok()) return output.status();
  return FromKernel(PullGather(PullGatherArgs{.plan = &plans_[rank],
                                              .sources = stages_.data(),
                                              .dtype = static_cast<DataType>(job_.dtype),
                                              .row_bytes = job_.row_bytes,
                                              .num_tokens = static_cast<int64_t>(part.num_tokens),
                                              .out = Out(rank),
                                              .out_weights = OutWeights(rank, *output),
                                              .drop_on_overflow = group_.spec.drop_on_overflow,
                                              .own_rows = nullptr,
                                              .own_weights = nullptr,
                                              .own_capacity = 0}),
                    rank);
}

}  // namespace

absl::Status MoveRowsOnCpu(MemfdArenas& arenas, const MoveGroup& group, const MoveJob& job) {
  return Mover(arenas, group, job).Run();
}

}  // namespace epd
