// How much memory a group of some shape needs, from the kernels' own size functions.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "proto/epd/v1/node.pb.h"

namespace epd {

struct GroupShape {
  uint32_t num_ranks = 0;
  uint32_t num_experts = 0;
  uint32_t top_k = 0;  // 0: as many as there are experts, up to the kernels' limit.
  uint32_t max_tokens_per_rank = 0;
  uint32_t recv_capacity_per_rank = 0;
  uint32_t alignment = 1;
  uint64_t hidden = 0;
  uint64_t element_bytes = 0;    // 1 to 8.
  bool worker_executor = false;  // The worker then keeps the plan and the output in staging too.
};

// Staging is that of one operation in flight, of one rank, at its largest. `pool_bytes`: of the node,
// which serves all ranks and has none of them in use.
//   INVALID_ARGUMENT  a group of this shape would be refused, or the kernels cannot serve it; says which field
absl::StatusOr<v1::PlanMemoryResponse> PlanGroupMemory(const GroupShape& shape,
                                                       uint64_t pool_bytes);

// Holds a plan of a group of `num_ranks` against the pool of this node: fills in the totals and the verdict.
void JudgePlan(uint32_t num_ranks, uint64_t pool_bytes, uint64_t committed_bytes,
               v1::PlanMemoryResponse& plan);

}  // namespace epd
