#include "daemon/backend/cpu/row_mover.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/backend/kernel_status.h"
#include "daemon/backend/move_routing.h"
#include "kernels/routing_plan.h"
#include "proto/epd/v1/operation_kind.h"
#include "proto/epd/v1/region_layout.h"

namespace epd {
namespace {

absl::Status FromKernel(const KernelError& error, size_t rank) {
  if (error.ok()) return absl::OkStatus();
  return ToStatus(error, absl::StrCat("output of rank ", rank, ": "));
}

}  // namespace

std::optional<absl::Status> RowMove::Some(uint64_t bytes) {
  absl::Status status = Go(bytes);
  if (status.ok() && step_ != Step::kDone) return std::nullopt;
  return status;
}

absl::Status RowMove::Go(uint64_t bytes) {
  switch (step_) {
    case Step::kMap:
      return Map();
    case Step::kTakeCounts:
      TakeCounts();
      return absl::OkStatus();
    case Step::kGiveCounts:
      return GiveCounts(bytes);
    case Step::kTakePlans:
      return TakePlan(bytes);
    case Step::kMakeOutputs:
      return MakeOutput(bytes);
    case Step::kDone:
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

void RowMove::NextRank(Step after_the_last) {
  done_ = 0;
  if (++rank_ == job_.parts.size()) {
    rank_ = 0;
    step_ = after_the_last;
  }
  has_plan_ = !copies_.empty() && copies_[rank_] != nullptr;
}

absl::Status RowMove::Map() {
  for (const MovePart& part : job_.parts) {
    absl::StatusOr<char*> base = arenas_.Map(part.arena);
    if (!base.ok()) return base.status();
    bases_.push_back(*base);
  }
  const size_t num_ranks = job_.parts.size();
  if (job_.kind == shm::Kind::kPrepare) {
    counts_.reset(new char[CountsBytes() * num_ranks]);
    step_ = Step::kTakeCounts;
    return absl::OkStatus();
  }
  copies_.resize(num_ranks);
  plans_.resize(num_ranks);
  stages_.resize(num_ranks);
  step_ = Step::kTakePlans;
  return absl::OkStatus();
}

void RowMove::TakeCounts() {
  std::memcpy(counts_.get() + rank_ * CountsBytes(), Region(), CountsBytes());
  NextRank(Step::kGiveCounts);
}

absl::Status RowMove::GiveCounts(uint64_t bytes) {
  const size_t all = CountsBytes() * job_.parts.size();
  if (job_.parts[rank_].local) {
    if (absl::Status status = Output().status(); !status.ok()) return status;
    const size_t now = std::min<uint64_t>(bytes, all - done_);
    std::memcpy(Out() + done_, counts_.get() + done_, now);
    done_ += now;
    if (done_ < all) return absl::OkStatus();
  }
  NextRank(Step::kDone);
  return absl::OkStatus();
}

absl::StatusOr<RegionLayout> RowMove::Output() const {
  const RegionLayout layout = LayoutOf(group_, job_, rank_, RegionStorage::kHostWorker);
  if (job_.parts[rank_].out_bytes >= layout.out_bytes) return layout;
  return absl::InvalidArgumentError(absl::StrCat("rank ", rank_, " announced an output of ",
                                                 job_.parts[rank_].out_bytes, " bytes, expected ",
                                                 layout.out_bytes));
}

absl::Status RowMove::TakePlan(uint64_t bytes) {
  const MovePart& part = job_.parts[rank_];
  if (!part.local) {
    stages_[rank_] = StageRef{.base = Region(), .bytes = part.stage_bytes};
    NextRank(Step::kMakeOutputs);
    return absl::OkStatus();
  }
  if (!has_plan_) return ReadPlan(bytes);
  const uint64_t begin = shm::StageOffset(plans_[rank_].used_bytes);
  if (begin > part.stage_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank_, " announced ", part.stage_bytes,
                                                   " bytes of stage, its plan alone takes ",
                                                   begin));
  }
  stages_[rank_] = StageRef{.base = Region() + begin, .bytes = part.stage_bytes - begin};
  if (PlanBytes() <= keeps_bytes_) {
    keeps_bytes_ -= PlanBytes();
  } else {
    copies_[rank_].reset();
  }
  NextRank(Step::kMakeOutputs);
  return absl::OkStatus();
}

absl::Status RowMove::ReadPlan(uint64_t bytes) {
  if (!reader_.has_value()) return CopyPlan(bytes);
  if (reader_->Some(bytes)) return absl::OkStatus();
  const KernelError error = reader_->View(&plans_[rank_]);
  reader_.reset();
  has_plan_ = error.ok();
  return FromKernel(error, rank_);
}

// The used part of a plan says itself how long it is; the copy takes what a plan of this group can
// have at most.
size_t RowMove::PlanBytes() const {
  return std::min<size_t>(job_.parts[rank_].stage_bytes, RoutingPlanBytes(RoutingOf(group_, job_)));
}

absl::Status RowMove::CopyPlan(uint64_t bytes) {
  std::unique_ptr<uint64_t[]>& copy = copies_[rank_];
  if (copy == nullptr) {
    const KernelError error = CheckRoutingSpec(RoutingOf(group_, job_));
    if (!error.ok()) return FromKernel(error, rank_);
    // Not zeroed, which would take as long as the copy.
    const size_t words = PlanBytes() / sizeof(uint64_t) + 1;
    copy.reset(new uint64_t[words]);
    copy[words - 1] = 0;
    return absl::OkStatus();
  }
  const size_t all = PlanBytes();
  const size_t now = std::min<uint64_t>(bytes, all - done_);
  std::memcpy(reinterpret_cast<char*>(copy.get()) + done_, Region() + done_, now);
  done_ += now;
  if (done_ < all) return absl::OkStatus();
  reader_.emplace(ViewPlanArgs{
      .plan = copy.get(),
      .bytes = all,
      .spec = RoutingOf(group_, job_),
      .rank = static_cast<int32_t>(rank_),
      .ids = {.group_id = group_.group_id, .epoch = group_.epoch, .plan_id = job_.plan_id}});
  return absl::OkStatus();
}

absl::Status RowMove::MakeOutput(uint64_t bytes) {
  if (job_.parts[rank_].local) {
    if (!has_plan_) return ReadPlan(bytes);
    if (pull_ == nullptr) return BeginPull();
    if (pull_->Some(bytes)) return absl::OkStatus();
    const KernelError error = pull_->error();
    pull_.reset();
    copies_[rank_].reset();
    if (!error.ok()) return FromKernel(error, rank_);
  }
  NextRank(Step::kDone);
  return absl::OkStatus();
}

absl::Status RowMove::BeginPull() {
  const MovePart& part = job_.parts[rank_];
  const absl::StatusOr<RegionLayout> output = Output();
  if (!output.ok()) return output.status();
  float* const weights =
      job_.has_weights ? reinterpret_cast<float*>(Out() + output->out_weights_at) : nullptr;
  if (Scatters(job_.kind)) {
    pull_ = MakeScatterPull({.plan = &plans_[rank_],
                             .sources = stages_.data(),
                             .row_bytes = job_.row_bytes,
                             .capacity = static_cast<int64_t>(part.recv_capacity),
                             .recv_rows = Out(),
                             .recv_weights = weights,
                             .drop_on_overflow = group_.spec.drop_on_overflow,
                             .own_rows = nullptr,
                             .own_weights = nullptr});
    return absl::OkStatus();
  }
  pull_ = MakeGatherPull({.plan = &plans_[rank_],
                          .sources = stages_.data(),
                          .dtype = static_cast<DataType>(job_.dtype),
                          .row_bytes = job_.row_bytes,
                          .num_tokens = static_cast<int64_t>(part.num_tokens),
                          .out = Out(),
                          .out_weights = weights,
                          .drop_on_overflow = group_.spec.drop_on_overflow,
                          .own_rows = nullptr,
                          .own_weights = nullptr,
                          .own_capacity = 0});
  return absl::OkStatus();
}

absl::Status MoveRowsOnCpu(MemfdArenas& arenas, const MoveGroup& group, const MoveJob& job) {
  RowMove move(arenas, group, job);
  for (;;) {
    const std::optional<absl::Status> ended = move.Some(std::numeric_limits<uint64_t>::max());
    if (ended.has_value()) return *ended;
  }
}

}  // namespace epd
