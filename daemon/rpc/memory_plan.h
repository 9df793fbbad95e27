// How much memory a group of some shape needs, from the kernels' own size functions.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

namespace epd {

struct GroupShape {
  uint32_t num_ranks = 0;
  uint32_t num_experts = 0;
  uint32_t top_k = 0;  // 0: as many as there are experts, up to the kernels' limit.
  uint32_t max_tokens_per_rank = 0;
  uint32_t recv_capacity_per_rank = 0;
  uint32_t alignment = 1;
  uint64_t row_bytes = 0;
  bool worker_executor = false;  // The worker then keeps the plan and the output in staging too.
};

struct MemoryPlan {
  uint64_t handle_mem_bytes = 0;         // Of one rank and one plan.
  uint64_t dispatch_bytes_per_rank = 0;  // Staging of one dispatch in flight, with weights.
  uint64_t combine_bytes_per_rank = 0;
};

//   INVALID_ARGUMENT  the kernels cannot serve this shape; says which field
absl::StatusOr<MemoryPlan> PlanGroupMemory(const GroupShape& shape);

}  // namespace epd
