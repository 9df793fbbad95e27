// Goal: what NCCL EP is told of a plan gives the plan's own slots when its rule is applied to it (expert by
// expert, in a zone by source and token), with and without drops, and nothing that would end its process
// gets so far.
#include "daemon/backend/nccl_ep/ep_routing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <vector>

#include "kernels/plan_checksum.h"
#include "tests/unit/daemon/backend/nccl_ep/plans.h"

namespace epd::nccl_ep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kNone = -1;

// The library's rule on what it was told: which (source, token) stands in each slot of `rank`.
std::vector<std::pair<int, int>> SlotsOf(const RoutingSpec& spec, int32_t rank,
                                         const std::vector<Indices>& told) {
  std::vector<std::pair<int, int>> slots;
  const ExpertRange range = OwnedExpertRange(spec, rank);
  for (int32_t e = range.begin; e < range.end; ++e) {
    for (size_t source = 0; source < told.size(); ++source) {
      const size_t tokens = told[source].size() / static_cast<size_t>(spec.top_k);
      for (size_t t = 0; t < tokens; ++t) {
        for (int32_t k = 0; k < spec.top_k; ++k) {
          if (told[source][t * static_cast<size_t>(spec.top_k) + static_cast<size_t>(k)] == e) {
            slots.emplace_back(static_cast<int>(source), static_cast<int>(t));
          }
        }
      }
    }
    while (slots.size() % static_cast<size_t>(EffectiveAlignment(spec)) != 0) {
      slots.emplace_back(kNone, kNone);
    }
  }
  return slots;
}

std::vector<Indices> RandomIndices(const RoutingSpec& spec, std::mt19937& random) {
  std::vector<Indices> topk(static_cast<size_t>(spec.num_ranks));
  for (Indices& of_rank : topk) {
    const auto tokens = random() % static_cast<unsigned>(spec.max_tokens + 1);
    for (unsigned t = 0; t < tokens; ++t) {
      std::set<int32_t> used;
      for (int32_t k = 0; k < spec.top_k; ++k) {
        const auto e = static_cast<int32_t>(random() % static_cast<unsigned>(spec.num_experts));
        of_rank.push_back(random() % 5 == 0 || !used.insert(e).second ? kNone : e);
      }
    }
  }
  return topk;
}

TEST(EpRoutingTest, WhatLandsHasThePlansSlotsUnderTheLibrarysRule) {
  std::mt19937 random(20);
  for (int round = 0; round < 200; ++round) {
    const RoutingSpec spec{.num_ranks = 3,
                           .num_experts = 6,
                           .top_k = 1 + static_cast<int32_t>(random() % 4),
                           .alignment = 1 << random() % 4,
                           .max_tokens = 12};
    const Plans plans = MakePlans(spec, RandomIndices(spec, random));
    const std::vector<uint64_t> capacity = {random() % 40, random() % 40, 1000};
    std::vector<Indices> told;
    std::vector<EpRouting> routings;
    for (int32_t rank = 0; rank < 3; ++rank) {
      absl::StatusOr<EpRouting> routing = EpRouting::FromPlan(plans.View(rank));
      ASSERT_TRUE(routing.ok()) << routing.status();
      told.push_back(routing->Land(capacity));
      routings.push_back(*std::move(routing));
    }
    for (int32_t rank = 0; rank < 3; ++rank) {
      std::vector<std::pair<int, int>> wanted = SlotsOf(spec, rank, plans.topk);
      wanted.resize(std::min<size_t>(wanted.size(), capacity[rank]));
      std::vector<std::pair<int, int>> got = SlotsOf(spec, rank, told);
      int64_t zones = 0;
      for (const int32_t zone : routings[rank].ZoneSlots(capacity[rank])) zones += zone;
      EXPECT_EQ(static_cast<int64_t>(got.size()), zones) << "round " << round;
      // Behind the capacity there can be padding only, and before it nothing else than the plan's.
      for (size_t i = wanted.size(); i < got.size(); ++i) EXPECT_EQ(got[i].first, kNone);
      got.resize(std::max(got.size(), wanted.size()), {kNone, kNone});
      got.resize(wanted.size());
      EXPECT_EQ(got, wanted) << "round " << round << " rank " << rank;
    }
  }
}

TEST(EpRoutingTest, WithoutDropsAnOverflowIsAnErrorThatNamesTheRank) {
  const RoutingSpec spec{
      .num_ranks = 2, .num_experts = 4, .top_k = 1, .alignment = 4, .max_tokens = 4};
  const Plans plans = MakePlans(spec, {{2, 2, 2}, {2, 3}});
  const absl::StatusOr<EpRouting> routing = EpRouting::FromPlan(plans.View(0));
  ASSERT_TRUE(routing.ok());
  EXPECT_TRUE(routing->Fit({8, 8}).ok());
  const absl::Status late = routing->Fit({8, 7});
  EXPECT_TRUE(absl::IsResourceExhausted(late));
  EXPECT_THAT(late.message(), HasSubstr("rank 1 would receive 8 slots, expected at most its "
                                        "recv_capacity of 7"));
}

TEST(EpRoutingTest, ATokenThatNamesAnExpertTwiceIsRefused) {
  const RoutingSpec spec{
      .num_ranks = 2, .num_experts = 4, .top_k = 2, .alignment = 1, .max_tokens = 4};
  const Plans plans = MakePlans(spec, {{0, 1, 3, 3}, {0, 1}});
  EXPECT_TRUE(EpRouting::FromPlan(plans.View(1)).ok());
  const absl::Status twice = EpRouting::FromPlan(plans.View(0)).status();
  EXPECT_TRUE(absl::IsInvalidArgument(twice));
  EXPECT_THAT(twice.message(), HasSubstr("rank 0 token 1 names expert 3 twice"));
  EXPECT_THAT(twice.message(), HasSubstr("backend=cuda"));
}

// A client can seal what it likes: a good checksum over bad slots.
TEST(EpRoutingTest, APlanWhoseSlotsAreNotThoseOfItsCountsIsDamaged) {
  const RoutingSpec spec{
      .num_ranks = 2, .num_experts = 4, .top_k = 2, .alignment = 1, .max_tokens = 4};
  const Plans good = MakePlans(spec, {{0, 1, 3, 2}, {0, 1}});
  const auto status = [&](auto change) {
    Plans plans = good;
    auto* bytes = reinterpret_cast<uint8_t*>(plans.memory[0].data());
    change(reinterpret_cast<PlanRoute*>(bytes + PlanTableOffset(2, 4)),
           reinterpret_cast<int32_t*>(bytes + PlanOrderOffset(spec, 2)));
    auto* header = reinterpret_cast<PlanHeader*>(bytes);
    header->checksum = PlanChecksum(bytes, PlanUsedBytes(spec, 2, header->num_routes));
    return EpRouting::FromPlan(plans.View(0)).status();
  };
  EXPECT_TRUE(status([](PlanRoute*, int32_t*) {}).ok());
  EXPECT_TRUE(absl::IsDataLoss(status([](PlanRoute* table, int32_t*) { table[0].slot = 900; })));
  EXPECT_TRUE(absl::IsDataLoss(status([](PlanRoute* table, int32_t*) { table[2].dst_rank = 0; })));
  EXPECT_TRUE(absl::IsDataLoss(status([](PlanRoute*, int32_t* order) { order[1] = order[0]; })));
  EXPECT_TRUE(absl::IsDataLoss(status([](PlanRoute*, int32_t* order) { order[3] = 1 << 20; })));
}

TEST(EpRoutingTest, APlanOfAnotherEpochIsStale) {
  const RoutingSpec spec{
      .num_ranks = 2, .num_experts = 4, .top_k = 1, .alignment = 1, .max_tokens = 4};
  const Plans plans = MakePlans(spec, {{0}, {1}});
  ViewPlanArgs view = plans.View(0);
  view.ids.epoch = 4;
  EXPECT_TRUE(absl::IsAborted(EpRouting::FromPlan(view).status()));
}

}  // namespace
}  // namespace epd::nccl_ep
