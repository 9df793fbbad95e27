#include "daemon/rpc/node_api/memory_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/gather_stage.h"
#include "kernels/kernel_error.h"
#include "kernels/routing_plan.h"
#include "kernels/routing_spec.h"
#include "kernels/scatter_stage.h"
#include "proto/epd/v1/limits.h"
#include "proto/epd/v1/region_layout.h"
#include "proto/epd/v1/segment.h"

namespace epd {
namespace {

constexpr int64_t kPageBytes = 4096;

uint64_t Pages(uint64_t bytes) {
  return static_cast<uint64_t>(AlignUp(static_cast<int64_t>(bytes), kPageBytes));
}

RoutingSpec ToRoutingSpec(const GroupShape& shape) {
  RoutingSpec spec;
  spec.num_ranks = static_cast<int32_t>(shape.num_ranks);
  spec.num_experts = static_cast<int32_t>(shape.num_experts);
  const uint32_t largest = std::min<uint32_t>(shape.num_experts, kMaxTopK);
  spec.top_k = static_cast<int32_t>(shape.top_k == 0 ? largest : shape.top_k);
  spec.alignment = static_cast<int32_t>(shape.alignment);
  spec.max_tokens = shape.max_tokens_per_rank;
  return spec;
}

// One region: what is staged, and for the worker executor the plan before it and the output behind it.
class Region {
 public:
  Region(const GroupShape& shape, uint64_t plan_bytes)
      : worker_(shape.worker_executor), plan_bytes_(worker_ ? plan_bytes : 0) {}

  uint64_t Bytes(uint64_t stage_bytes, uint64_t out_bytes) const {
    const uint64_t staged = shm::StageOffset(plan_bytes_) + stage_bytes;
    return Pages(shm::RoundUpToRegionAlignment(staged) + (worker_ ? out_bytes : 0));
  }

 private:
  const bool worker_;
  const uint64_t plan_bytes_;
};

void PlanScatters(const GroupShape& shape, const RoutingSpec& spec, MemoryPlan& plan) {
  const uint64_t row_bytes = shape.hidden * shape.element_bytes;
  const uint64_t slots = shape.recv_capacity_per_rank;
  const uint64_t stage = ScatterStageBytes({.num_tokens = spec.max_tokens,
                                            .num_routes = spec.max_tokens * spec.top_k,
                                            .num_ranks = spec.num_ranks,
                                            .row_bytes = row_bytes});
  const Region region(shape, plan.handle_mem_bytes);
  plan.dispatch_bytes_per_rank = region.Bytes(stage, shm::OutBytes(slots * row_bytes, slots));
  plan.combine_backward_bytes_per_rank = region.Bytes(stage, shm::OutBytes(slots * row_bytes, 0));
}

void PlanGathers(const GroupShape& shape, const RoutingSpec& spec, MemoryPlan& plan) {
  const uint64_t row_bytes =
      shape.hidden * std::min<uint64_t>(shape.element_bytes, limits::kSummedElementBytes);
  const uint64_t tokens = shape.max_tokens_per_rank;
  const auto stage = [&](bool has_weights) {
    return GatherStageBytes({.num_rows = shape.recv_capacity_per_rank,
                             .row_bytes = row_bytes,
                             .has_weights = has_weights});
  };
  const Region region(shape, plan.handle_mem_bytes);
  plan.combine_bytes_per_rank = region.Bytes(stage(false), shm::OutBytes(tokens * row_bytes, 0));
  plan.dispatch_backward_bytes_per_rank = region.Bytes(
      stage(true), shm::OutBytes(tokens * row_bytes, tokens * static_cast<uint64_t>(spec.top_k)));
}

// Staging::WantEagerBuffers takes as much of a pool that nobody uses.
uint64_t EagerBytes(const GroupShape& shape, uint64_t pool_bytes) {
  if (shape.worker_executor || shape.num_ranks > limits::kEagerRanks) return 0;
  const uint64_t share = pool_bytes / shm::kEagerPoolShare;
  const uint64_t num_eager_buffers = share / (shm::kEagerBufferBytes * shape.num_ranks);
  return std::min<uint64_t>(num_eager_buffers, shm::kMaxEagerBuffers) * shm::kEagerBufferBytes;
}

}  // namespace

absl::StatusOr<MemoryPlan> PlanGroupMemory(const GroupShape& shape, uint64_t pool_bytes) {
  const RoutingSpec spec = ToRoutingSpec(shape);
  if (const KernelError bad = CheckRoutingSpec(spec); !bad.ok()) {
    return absl::InvalidArgumentError(ToString(bad));
  }
  if (shape.element_bytes == 0 || shape.element_bytes > limits::kMovedElementBytes) {
    return absl::InvalidArgumentError(absl::StrCat("element_bytes is ", shape.element_bytes,
                                                   ", expected 1 to ", limits::kMovedElementBytes));
  }
  MemoryPlan plan;
  plan.handle_mem_bytes = RoutingPlanBytes(spec);
  const uint64_t counts_bytes = uint64_t{shape.num_experts} * sizeof(int32_t);
  plan.prepare_bytes_per_rank =
      Region(shape, 0).Bytes(counts_bytes, counts_bytes * shape.num_ranks);
  PlanScatters(shape, spec, plan);
  PlanGathers(shape, spec, plan);
  plan.eager_bytes_per_rank = EagerBytes(shape, pool_bytes);
  return plan;
}

}  // namespace epd
