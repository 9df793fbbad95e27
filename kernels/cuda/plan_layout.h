// Sections and scratch of a plan that device code writes or reads.
#pragma once

#include <cstdint>

#include "kernels/cuda/tiles.h"
#include "kernels/routing_plan.h"

namespace epd::cuda {

// A block of SumPlan adds up so many words, and one of FinishPlan clears so many.
inline constexpr std::int64_t kPlanWordsPerUnit = 8192;

struct PlanSections {
  PlanExpert* experts;
  std::int32_t* counts;
  PlanRoute* table;
  std::int32_t* order;
};

EPD_HOST_DEVICE inline PlanSections SectionsOf(std::uint8_t* plan, const RoutingSpec& spec,
                                               std::int64_t num_tokens) {
  return {reinterpret_cast<PlanExpert*>(plan + sizeof(PlanHeader)),
          reinterpret_cast<std::int32_t*>(plan + PlanCountsOffset(spec.num_experts)),
          reinterpret_cast<PlanRoute*>(plan + PlanTableOffset(spec.num_ranks, spec.num_experts)),
          reinterpret_cast<std::int32_t*>(plan + PlanOrderOffset(spec, num_tokens))};
}

// Device memory that a build needs for its own use. Contents before and after mean nothing.
struct PlanScratch {
  std::int32_t* tiles = nullptr;               // [tiles, E]
  std::int32_t* own_counts = nullptr;          // [E]
  std::int64_t* expert_rows = nullptr;         // [E]
  std::int64_t* expert_rows_before = nullptr;  // [E]
  std::int64_t* rank_routes = nullptr;         // [R]
  std::uint64_t* sums = nullptr;               // [PlanSumUnits(spec)]
};

// Words that a checksum of any plan of this spec may cover, in units.
EPD_HOST_DEVICE inline std::int64_t PlanSumUnits(const RoutingSpec& spec) {
  return CeilDiv(static_cast<std::int64_t>(RoutingPlanBytes(spec)), 8 * kPlanWordsPerUnit);
}

}  // namespace epd::cuda
