// Goal: the plan that the CUDA kernels build is, byte for byte, the plan that the CPU builds, whatever
// order blocks and threads run in; what is wrong is found and leaves zeros.
#include "kernels/cuda/build_plan.h"

#include <gtest/gtest.h>

#include <cstddef>

#include "kernels/plan_checksum.h"
#include "tests/unit/kernels/cuda/device_exchange.h"

namespace epd::cuda {
namespace {

TEST(BuildPlanTest, PlansAreThoseOfTheCpu) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    Random random(seed);
    const reference::Problem problem = RandomProblem(random, kAllRoutings[seed % 5]);
    SCOPED_TRACE(Describe(problem, seed));
    Plans plans(problem, seed % 2 == 0 ? IndexType::kInt64 : IndexType::kInt32);
    for (int r = 0; r < problem.num_ranks; ++r) {
      const Device device = RandomDevice(random);
      DevicePlan build(problem, r, plans.Topk(r), plans.Counts().data());
      Execute(BuildPlanLaunches(build.args, device.shape), device);
      EXPECT_EQ(build.report, kNoReport);
      EXPECT_EQ(build.plan.Copy(), plans.Memory(r).Copy()) << "rank " << r;
      EXPECT_EQ(build.token_counts, plans.TokenCounts(r));
      EXPECT_EQ(build.total_recv, plans.TotalRecv(r));
    }
    if (HasFailure()) break;
  }
}

// Several tiles, several chunks of columns, several units of checksum.
TEST(BuildPlanTest, LargePlansAreThoseOfTheCpu) {
  for (const int num_experts : {7, 300, 512}) {
    Random random(static_cast<std::uint64_t>(num_experts));
    reference::Problem problem;
    problem.num_ranks = 3;
    problem.num_experts = num_experts;
    problem.top_k = 6;
    problem.alignment = 16;
    problem.max_tokens = 3000;
    problem.owner = reference::ContiguousOwners(3, num_experts);
    problem.topk.resize(3);
    for (int r = 0; r < 3; ++r) {
      problem.topk[r].resize((2500 + r) * 6);
      for (std::int64_t& expert : problem.topk[r]) {
        expert = Uniform(random, -1, num_experts - 1);
      }
    }
    Plans plans(problem);
    const Device device = RandomDevice(random);
    DevicePlan build(problem, 1, plans.Topk(1), plans.Counts().data());
    Execute(BuildPlanLaunches(build.args, device.shape), device);
    EXPECT_EQ(build.report, kNoReport);
    EXPECT_EQ(build.plan.Copy(), plans.Memory(1).Copy()) << num_experts;
  }
}

TEST(BuildPlanTest, CountsAreThoseOfTheCpu) {
  for (std::uint64_t seed = 500; seed < 540; ++seed) {
    Random random(seed);
    const reference::Problem problem = RandomProblem(random, kAllRoutings[seed % 5]);
    SCOPED_TRACE(Describe(problem, seed));
    Plans plans(problem);
    const Device device = RandomDevice(random);
    for (int r = 0; r < problem.num_ranks; ++r) {
      DevicePlan build(problem, r, plans.Topk(r), nullptr);
      Execute(CountLaunches(build.args, device.shape), device);
      const auto* want = plans.Counts().data() + r * problem.num_experts;
      EXPECT_EQ(std::vector<std::int32_t>(build.args.scratch.own_counts,
                                          build.args.scratch.own_counts + problem.num_experts),
                std::vector<std::int32_t>(want, want + problem.num_experts));
    }
  }
}

struct PlanWords {
  std::uint64_t plan_id = 7;
  std::uint64_t demand = 7;
  std::int64_t live_rows = 7;
};

PlanWords TellWords(const RoutingSpec& spec, int rank, const void* plan, const Device& device) {
  PlanWords words;
  TellPlan::Args args;
  args.plan = static_cast<const std::uint8_t*>(plan);
  args.spec = spec;
  args.rank = rank;
  args.plan_id = &words.plan_id;
  args.demand = &words.demand;
  args.live_rows = &words.live_rows;
  Execute(TellPlanLaunches(args, device.shape), device);
  return words;
}

TEST(TellPlanTest, WhatARankNeedsIsItsTotalAndWhosePlanItIsStandsInIt) {
  for (std::uint64_t seed = 700; seed < 780; ++seed) {
    Random random(seed);
    const reference::Problem problem = RandomProblem(random, kAllRoutings[seed % 5]);
    SCOPED_TRACE(Describe(problem, seed));
    Plans plans(problem);
    for (int r = 0; r < problem.num_ranks; ++r) {
      const PlanWords words =
          TellWords(problem.Spec(), r, plans.Memory(r).data(), RandomDevice(random));
      EXPECT_EQ(words.plan_id, kTestIds.plan_id);
      EXPECT_EQ(words.demand, static_cast<std::uint64_t>(plans.TotalRecv(r)));
      EXPECT_EQ(words.live_rows, plans.TotalRecv(r));
    }
  }
}

TEST(TakeAnswerTest, CopiesTheAnswerAndThePlansIds) {
  const std::uint32_t done = 14;
  const PlanIds ids = {1, 2, 3};
  UseWords words;
  const Device device;
  Execute(TakeAnswerLaunches({&done, &words.published}, device.shape), device);
  EXPECT_EQ(words.published, 14u);
  EXPECT_EQ(words.announced, 0u);
  EXPECT_EQ(words.ids.plan_id, 0u);
  Execute(TakeAnswerLaunches({&done, &words.announced, &ids, &words.ids}, device.shape), device);
  EXPECT_EQ(words.announced, 14u);
  EXPECT_EQ(words.ids.group_id, 1u);
  EXPECT_EQ(words.ids.epoch, 2u);
  EXPECT_EQ(words.ids.plan_id, 3u);
}

class FaultTest : public testing::Test {
 protected:
  FaultTest() {
    problem_.num_ranks = 2;
    problem_.num_experts = 4;
    problem_.top_k = 2;
    problem_.alignment = 4;
    problem_.max_tokens = 8;
    problem_.owner = reference::ContiguousOwners(2, 4);
    problem_.topk = {{0, 1, 2, 3, 0, -1}, {1, 0, 3, 3}};
    plans_ = std::make_unique<Plans>(problem_);
    build_ = std::make_unique<DevicePlan>(problem_, 0, plans_->Topk(0), plans_->Counts().data());
  }

  void ExpectZeros() {
    EXPECT_EQ(build_->plan.Copy(), reference::Bytes(build_->plan.size(), 0));
    EXPECT_EQ(build_->token_counts, (std::vector<std::int32_t>{0, 0}));
    EXPECT_EQ(build_->total_recv, 0);
  }
  void Build() {
    const Device device{{2, 80, 0, INT64_MAX}, HostOrder::kBackward};
    Execute(BuildPlanLaunches(build_->args, device.shape), device);
  }

  reference::Problem problem_;
  std::unique_ptr<Plans> plans_;
  std::unique_ptr<DevicePlan> build_;
};

TEST_F(FaultTest, AnIndexBeyondTheExpertsNamesItsRoute) {
  std::vector<std::int64_t> topk = problem_.topk[0];
  topk[3] = 4;
  build_->args.experts.topk = topk.data();
  Build();
  EXPECT_EQ(ReadReport(build_->report).fault, KernelFault::kExpertIndex);
  EXPECT_EQ(ReadReport(build_->report).code, Code::kInvalidArgument);
  EXPECT_EQ(ReadReport(build_->report).index, 3);
  ExpectZeros();
}

TEST_F(FaultTest, CountsThatAreNotThisRanksAreRefused) {
  plans_->Counts()[2] += 1;
  Build();
  EXPECT_EQ(ReadReport(build_->report).fault, KernelFault::kCountMismatch);
  EXPECT_EQ(ReadReport(build_->report).index, 2);
  ExpectZeros();
}

TEST_F(FaultTest, CountsOutOfRangeNameRankAndExpert) {
  for (const std::int32_t bad : {-1, 17}) {
    build_->report = kNoReport;
    plans_->Counts()[5] = bad;
    Build();
    EXPECT_EQ(ReadReport(build_->report).fault, KernelFault::kCountRange);
    EXPECT_EQ(ReadReport(build_->report).index, 5);
    ExpectZeros();
  }
}

TEST_F(FaultTest, ABadStatusLeavesZeros) {
  for (const std::uint32_t status : {0u, 2u, 1000u}) {
    build_->args.status = &status;
    Build();
    ExpectZeros();
  }
  const std::uint32_t good = 1;
  build_->args.status = &good;
  Build();
  EXPECT_EQ(build_->plan.Copy(), plans_->Memory(0).Copy());
}

// What such a plan is worth is found out later; its counts are no overflow of this call's.
TEST_F(FaultTest, APlanOfSomethingElseTellsNoDemand) {
  const Device device{{2, 80, 0, INT64_MAX}, HostOrder::kShuffled};
  std::uint8_t* const bytes = plans_->Memory(0).data();
  ASSERT_NE(TellWords(problem_.Spec(), 0, bytes, device).demand, 0u);
  EXPECT_EQ(TellWords(problem_.Spec(), 1, bytes, device).demand, 0u) << "another rank's";
  RoutingSpec wider = problem_.Spec();
  wider.alignment = 8;
  EXPECT_EQ(TellWords(wider, 0, bytes, device).demand, 0u) << "of another alignment";
  bytes[0] ^= 1;
  EXPECT_EQ(TellWords(problem_.Spec(), 0, bytes, device).demand, 0u) << "no plan";
  const reference::Bytes zeros(plans_->Memory(0).size(), 0);
  EXPECT_EQ(TellWords(problem_.Spec(), 0, zeros.data(), device).plan_id, 0u);
}

class VerifyTest : public FaultTest {
 protected:
  KernelFault Verify() {
    const Region& plan = plans_->Memory(0);
    VerifyPlan::Args args;
    args.plan = plan.data();
    args.spec = problem_.Spec();
    args.rank = 0;
    args.ids = kTestIds;
    args.num_tokens = problem_.NumTokens(0);
    ReportWord report = kNoReport;
    args.report = &report;
    std::vector<std::uint64_t> sums(PlanSumUnits(args.spec));
    const Device device{{2, 80, 0, INT64_MAX}, HostOrder::kShuffled};
    Execute(VerifyPlanLaunches(args, sums.data(), device.shape), device);
    return ReadReport(report).fault;
  }
  PlanHeader* Header() { return reinterpret_cast<PlanHeader*>(plans_->Memory(0).data()); }
  void Reseal() {
    Header()->checksum = PlanChecksum(plans_->Memory(0).data(), plans_->View(0).used_bytes);
  }
};

TEST_F(VerifyTest, AGoodPlanPasses) { EXPECT_EQ(Verify(), KernelFault::kNone); }

TEST_F(VerifyTest, EveryDamagedByteIsFound) {
  std::uint8_t* bytes = plans_->Memory(0).data();
  for (std::size_t i = 0; i < plans_->View(0).used_bytes; ++i) {
    bytes[i] ^= 0x10;
    EXPECT_NE(Verify(), KernelFault::kNone) << "byte " << i;
    bytes[i] ^= 0x10;
  }
}

TEST_F(VerifyTest, PlansOfSomethingElseAreNamed) {
  Header()->group_id += 1;
  Reseal();
  EXPECT_EQ(Verify(), KernelFault::kPlanGroup);
  Header()->group_id -= 1;
  Header()->epoch += 1;
  Reseal();
  EXPECT_EQ(Verify(), KernelFault::kPlanEpoch);
  Header()->epoch -= 1;
  Header()->plan_id += 1;
  Reseal();
  EXPECT_EQ(Verify(), KernelFault::kPlanId);
  Header()->plan_id -= 1;
  Header()->rank = 1;
  Reseal();
  EXPECT_EQ(Verify(), KernelFault::kPlanRank);
}

// A token count beyond the maximum would make the used part longer than the memory.
TEST_F(VerifyTest, SizesThatCannotBeAreNotRead) {
  Header()->num_tokens = 1u << 30;
  EXPECT_EQ(Verify(), KernelFault::kPlanNumTokens);
  Header()->num_tokens = 3;
  Header()->num_routes = 1u << 30;
  EXPECT_EQ(Verify(), KernelFault::kPlanNumTokens);
}

}  // namespace
}  // namespace epd::cuda
