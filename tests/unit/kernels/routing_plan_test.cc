// Goal: counts, zones, slots and order are the reference's for every shape, a function of the input
// alone, and bad input is refused with its place.
#include "kernels/routing_plan.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/unit/kernels/exchange.h"

namespace epd {
namespace {

void ExpectLikeReference(const reference::Problem& problem, const Plans& plans, int rank) {
  const reference::RecvBuffer recv = reference::Recv(problem, rank);
  EXPECT_EQ(plans.TokenCounts(rank), recv.zone);
  EXPECT_EQ(plans.TotalRecv(rank), static_cast<std::int64_t>(recv.slots.size()));

  const RoutingPlanView& view = plans.View(rank);
  const std::vector<reference::Place> places = reference::Places(problem, rank);
  std::int64_t num_routes = 0;
  for (std::size_t i = 0; i < places.size(); ++i) {
    EXPECT_EQ(view.table[i].dst_rank, places[i].rank) << "route " << i;
    EXPECT_EQ(view.table[i].slot, places[i].slot) << "route " << i;
    num_routes += places[i].rank >= 0;
  }
  ASSERT_EQ(view.num_routes, num_routes);
  for (std::int64_t i = 1; i < num_routes; ++i) {
    const PlanRoute& last = view.table[view.order[i - 1]];
    const PlanRoute& next = view.table[view.order[i]];
    EXPECT_TRUE(last.dst_rank < next.dst_rank ||
                (last.dst_rank == next.dst_rank && last.slot < next.slot))
        << "order " << i;
  }
}

TEST(RoutingPlanTest, RandomPlansMatchTheReference) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    Random random(seed);
    const reference::Problem problem = RandomProblem(random, kAllRoutings[seed % 5]);
    SCOPED_TRACE(Describe(problem, seed));
    const Plans plans(problem, seed % 2 == 0 ? IndexType::kInt64 : IndexType::kInt32);
    for (int r = 0; r < problem.num_ranks; ++r) ExpectLikeReference(problem, plans, r);
    if (HasFailure()) break;
  }
}

TEST(RoutingPlanTest, BothIndexTypesGiveTheSameBytes) {
  Random random(77);
  const reference::Problem problem = RandomProblem(random, Routing::kUniform);
  const Plans wide(problem, IndexType::kInt64);
  const Plans narrow(problem, IndexType::kInt32);
  for (int r = 0; r < problem.num_ranks; ++r) {
    EXPECT_EQ(wide.Memory(r).Copy(), narrow.Memory(r).Copy());
  }
}

class RoutingPlanArgumentsTest : public testing::Test {
 protected:
  RoutingPlanArgumentsTest() {
    problem_.num_ranks = 2;
    problem_.num_experts = 5;
    problem_.top_k = 2;
    problem_.max_tokens = 4;
    problem_.owner = reference::ContiguousOwners(2, 5);
    problem_.topk = {{0, 1, 4, -1}, {3, 3}};
    plans_ = std::make_unique<Plans>(problem_);
  }
  reference::Problem problem_;
  std::unique_ptr<Plans> plans_;
};

TEST_F(RoutingPlanArgumentsTest, SizeDependsOnRanksExpertsTokensAndTopKOnly) {
  const RoutingSpec spec = problem_.Spec();
  EXPECT_EQ(RoutingPlanBytes(spec) % 64, 0u);
  RoutingSpec other = spec;
  other.alignment = 128;
  other.expert_owner = problem_.owner.data();
  EXPECT_EQ(RoutingPlanBytes(other), RoutingPlanBytes(spec));
  other.max_tokens = 1000;
  EXPECT_GT(RoutingPlanBytes(other), RoutingPlanBytes(spec));
}

TEST_F(RoutingPlanArgumentsTest, UnusedTailIsZeros) {
  const Region& memory = plans_->Memory(0);
  for (std::size_t i = plans_->View(0).used_bytes; i < memory.size(); ++i) {
    ASSERT_EQ(memory.data()[i], 0) << "byte " << i;
  }
}

TEST_F(RoutingPlanArgumentsTest, IndexOfEOrMoreNamesTokenAndK) {
  const std::int64_t topk[] = {0, 1, 2, 5};
  std::int32_t counts[5] = {9, 9, 9, 9, 9};
  const KernelError error = CountRoutes(problem_.Spec(), {topk, IndexType::kInt64, 2}, counts);
  EXPECT_EQ(error.code, Code::kInvalidArgument);
  EXPECT_EQ(error.fault, KernelFault::kExpertIndex);
  EXPECT_EQ(error.token, 1);
  EXPECT_EQ(error.k, 1);
  EXPECT_EQ(error.got, 5u);
  EXPECT_EQ(error.expected, 5u);
  for (const std::int32_t count : counts) EXPECT_EQ(count, 0);
}

TEST_F(RoutingPlanArgumentsTest, HugeAndLowestInt64IndicesAreNotTruncated) {
  const std::int64_t topk[] = {std::numeric_limits<std::int64_t>::min(), std::int64_t{1} << 32};
  std::int32_t counts[5];
  const KernelError error = CountRoutes(problem_.Spec(), {topk, IndexType::kInt64, 1}, counts);
  EXPECT_EQ(error.fault, KernelFault::kExpertIndex);
  EXPECT_EQ(error.k, 1);
  EXPECT_EQ(error.got, std::uint64_t{1} << 32);
}

TEST_F(RoutingPlanArgumentsTest, MoreTokensThanTheMaximumAreRefused) {
  const std::vector<std::int64_t> topk(10, 0);
  std::int32_t counts[5];
  const KernelError error =
      CountRoutes(problem_.Spec(), {topk.data(), IndexType::kInt64, 5}, counts);
  EXPECT_EQ(error.fault, KernelFault::kNumTokens);
  EXPECT_EQ(error.got, 5u);
  EXPECT_EQ(error.expected, 4u);
}

TEST_F(RoutingPlanArgumentsTest, CountsThatAreNotThisRanksAreRefusedWithZeros) {
  plans_->Counts()[4] += 1;
  const KernelError error = BuildRoutingPlan(plans_->BuildArgs(0));
  EXPECT_EQ(error.fault, KernelFault::kCountMismatch);
  EXPECT_EQ(error.rank, 0);
  EXPECT_EQ(error.index, 4);
  EXPECT_EQ(error.got, 2u);
  EXPECT_EQ(error.expected, 1u);
  EXPECT_EQ(plans_->Memory(0).Copy(), reference::Bytes(plans_->Memory(0).size(), 0));
  EXPECT_EQ(plans_->TotalRecv(0), 0);
  for (const std::int32_t count : plans_->TokenCounts(0)) EXPECT_EQ(count, 0);
}

TEST_F(RoutingPlanArgumentsTest, APeersCountsOutOfRangeNameRankAndExpert) {
  for (const std::int32_t bad : {-1, 9, std::numeric_limits<std::int32_t>::min()}) {
    plans_->Counts()[5 + 2] = bad;
    const KernelError error = BuildRoutingPlan(plans_->BuildArgs(0));
    EXPECT_EQ(error.fault, KernelFault::kCountRange);
    EXPECT_EQ(error.rank, 1);
    EXPECT_EQ(static_cast<std::int64_t>(error.got), bad);
    EXPECT_EQ(error.expected, 8u);
  }
}

TEST_F(RoutingPlanArgumentsTest, SlotsThatDoNotFitInAnInt32AreRefused) {
  RoutingSpec spec = problem_.Spec();
  spec.alignment = kMaxAlignment;
  spec.num_ranks = 1;
  spec.num_experts = kMaxExperts;
  const std::vector<std::int32_t> counts(spec.num_experts, 1);
  spec.max_tokens = spec.num_experts;
  EXPECT_EQ(CheckCounts(spec, counts.data()).fault, KernelFault::kTooManySlots);
}

TEST_F(RoutingPlanArgumentsTest, BadBuffersAreRefused) {
  BuildPlanArgs args = plans_->BuildArgs(0);
  args.plan_bytes -= 1;
  EXPECT_EQ(BuildRoutingPlan(args).fault, KernelFault::kBufferTooSmall);
  args = plans_->BuildArgs(0);
  args.plan = static_cast<std::uint8_t*>(args.plan) + 4;
  args.plan_bytes -= 4;
  EXPECT_EQ(BuildRoutingPlan(args).fault, KernelFault::kMisaligned);
  args = plans_->BuildArgs(0);
  args.rank = 2;
  EXPECT_EQ(BuildRoutingPlan(args).fault, KernelFault::kRank);
  args = plans_->BuildArgs(0);
  args.token_counts = nullptr;
  EXPECT_EQ(BuildRoutingPlan(args).fault, KernelFault::kNullArgument);
  args = plans_->BuildArgs(0);
  args.topk.type = static_cast<IndexType>(3);
  EXPECT_EQ(BuildRoutingPlan(args).fault, KernelFault::kIndexType);
}

}  // namespace
}  // namespace epd
