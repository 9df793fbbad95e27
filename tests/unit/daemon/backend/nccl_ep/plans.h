// Plans of all ranks of a group on NCCL EP, out of their routes.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "kernels/routing_plan.h"

namespace epd::nccl_ep {

inline constexpr PlanIds kIds = {.group_id = 7, .epoch = 3, .plan_id = 11};
using Indices = std::vector<int32_t>;  // [T, K]

struct Plans {
  RoutingSpec spec;
  std::vector<Indices> topk;  // By rank.
  std::vector<std::vector<uint64_t>> memory;

  ViewPlanArgs View(int32_t rank) const {
    return {.plan = memory[rank].data(),
            .bytes = memory[rank].size() * sizeof(uint64_t),
            .spec = spec,
            .rank = rank,
            .ids = kIds};
  }
};

inline Plans MakePlans(const RoutingSpec& spec, const std::vector<Indices>& topk) {
  Plans plans{.spec = spec, .topk = topk, .memory = {}};
  std::vector<int32_t> counts(static_cast<size_t>(spec.num_ranks * spec.num_experts));
  const auto indices = [&](int32_t rank) {
    return TopkIndices{.data = topk[rank].data(),
                       .type = IndexType::kInt32,
                       .num_tokens = static_cast<int64_t>(topk[rank].size()) / spec.top_k};
  };
  for (int32_t rank = 0; rank < spec.num_ranks; ++rank) {
    EXPECT_TRUE(CountRoutes(spec, indices(rank), counts.data() + rank * spec.num_experts).ok());
  }
  for (int32_t rank = 0; rank < spec.num_ranks; ++rank) {
    std::vector<uint64_t>& memory = plans.memory.emplace_back(RoutingPlanBytes(spec) / 8);
    std::vector<int32_t> zones(static_cast<size_t>(NumLocalExperts(spec, rank)));
    int32_t total = 0;
    EXPECT_TRUE(BuildRoutingPlan({.spec = spec,
                                  .rank = rank,
                                  .ids = kIds,
                                  .topk = indices(rank),
                                  .counts = counts.data(),
                                  .plan = memory.data(),
                                  .plan_bytes = memory.size() * sizeof(uint64_t),
                                  .token_counts = zones.data(),
                                  .total_recv = &total})
                    .ok());
  }
  return plans;
}

}  // namespace epd::nccl_ep
