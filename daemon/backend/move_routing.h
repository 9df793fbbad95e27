// The routing and the regions of a move, as kernels take them.
#pragma once

#include "daemon/backend/move_job.h"
#include "kernels/region/region_layout.h"
#include "kernels/routing_plan.h"

namespace epd {

// Borrows the group's table of owners. Not checked: see CheckRoutingSpec.
inline RoutingSpec RoutingOf(const MoveGroup& group, const MoveJob& job) {
  return {.num_ranks = static_cast<int32_t>(job.parts.size()),
          .num_experts = static_cast<int32_t>(group.spec.num_experts),
          .top_k = static_cast<int32_t>(job.top_k),
          .alignment = static_cast<int32_t>(job.alignment),
          .max_tokens = group.spec.max_tokens_per_rank,
          .expert_owner = group.expert_owner.empty() ? nullptr : group.expert_owner.data()};
}

// The region of a rank whose rows the worker moves; the part before the output where `storage` is a device alone.
inline RegionLayout LayoutOf(const MoveGroup& group, const MoveJob& job, size_t rank,
                             RegionStorage storage) {
  const MovePart& part = job.parts[rank];
  return MakeLayout(job.kind,
                    {.num_ranks = job.parts.size(),
                     .num_experts = group.spec.num_experts,
                     .num_tokens = part.num_tokens,
                     .num_slots = part.recv_capacity,
                     .top_k = job.top_k,
                     .row_bytes = job.row_bytes,
                     .has_weights = job.has_weights,
                     .plan_bytes = RoutingPlanBytes(RoutingOf(group, job))},
                    storage);
}

}  // namespace epd
