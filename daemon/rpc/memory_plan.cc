#include "daemon/rpc/memory_plan.h"

#include <algorithm>

#include "kernels/gather_stage.h"
#include "kernels/kernel_error.h"
#include "kernels/routing_plan.h"
#include "kernels/routing_spec.h"
#include "kernels/scatter_stage.h"
#include "proto/epd/v1/region_layout.h"

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

// What the worker executor keeps in a region beside the stage: a copy of the plan, and `rows` rows
// with weights.
uint64_t WorkerExtra(const GroupShape& shape, uint64_t plan_bytes, uint64_t rows,
                     uint64_t weights) {
  if (!shape.worker_executor) return 0;
  return shm::StageOffset(plan_bytes) + shm::OutBytes(rows * shape.row_bytes, weights);
}

}  // namespace

absl::StatusOr<MemoryPlan> PlanGroupMemory(const GroupShape& shape) {
  const RoutingSpec spec = ToRoutingSpec(shape);
  if (const KernelError bad = CheckRoutingSpec(spec); !bad.ok()) {
    char text[256];
    FormatKernelError(bad, text, sizeof text);
    return absl::InvalidArgumentError(text);
  }
  MemoryPlan plan;
  plan.handle_mem_bytes = RoutingPlanBytes(spec);
  ScatterStageShape scatter;
  scatter.num_tokens = spec.max_tokens;
  scatter.num_routes = spec.max_tokens * spec.top_k;
  scatter.num_ranks = spec.num_ranks;
  scatter.row_bytes = shape.row_bytes;
  const uint64_t slots = shape.recv_capacity_per_rank;
  plan.dispatch_bytes_per_rank =
      Pages(ScatterStageBytes(scatter) + WorkerExtra(shape, plan.handle_mem_bytes, slots, slots));
  GatherStageShape gather;
  gather.num_rows = shape.recv_capacity_per_rank;
  gather.row_bytes = shape.row_bytes;
  plan.combine_bytes_per_rank =
      Pages(GatherStageBytes(gather) +
            WorkerExtra(shape, plan.handle_mem_bytes, shape.max_tokens_per_rank, 0));
  return plan;
}

}  // namespace epd
