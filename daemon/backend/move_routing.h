// The routing of a move, as kernels take it.
#pragma once

#include "daemon/backend/move_job.h"
#include "kernels/routing_spec.h"

namespace epd {

// Borrows the group's table of owners. Not checked: see CheckRoutingSpec.
inline RoutingSpec RoutingOf(const MoveGroup& group, const MoveJob& job) {
  return {.num_ranks = static_cast<int32_t>(job.parts.size()),
          .num_experts = static_cast<int32_t>(group.num_experts),
          .top_k = static_cast<int32_t>(job.top_k),
          .alignment = static_cast<int32_t>(job.alignment),
          .max_tokens = group.max_tokens,
          .expert_owner = group.expert_owner.empty() ? nullptr : group.expert_owner.data()};
}

}  // namespace epd
