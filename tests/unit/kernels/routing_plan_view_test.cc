// Goal: a plan that is damaged, foreign, stale or of another call is recognised, each with the
// field that is wrong, and no bytes at all make ViewRoutingPlan read out of bounds.
#include <gtest/gtest.h>

#include "kernels/plan_checksum.h"
#include "kernels/routing_plan.h"
#include "tests/unit/kernels/exchange.h"

namespace epd {
namespace {

class RoutingPlanViewTest : public testing::Test {
 protected:
  RoutingPlanViewTest() {
    problem_.num_ranks = 3;
    problem_.num_experts = 7;
    problem_.top_k = 2;
    problem_.alignment = 8;
    problem_.max_tokens = 6;
    problem_.owner = reference::ContiguousOwners(3, 7);
    problem_.topk = {{0, 1, 2, 3, 4, -1}, {6, 5}, {}};
    plans_ = std::make_unique<Plans>(problem_);
  }

  // The header of rank 0's plan, to damage.
  PlanHeader* Header() { return reinterpret_cast<PlanHeader*>(plans_->Memory(0).data()); }

  // Makes the checksum right again, as a plan of somebody else's would have it.
  void Seal() {
    Header()->checksum = PlanChecksum(plans_->Memory(0).data(), plans_->View(0).used_bytes);
  }

  KernelError View() { return ViewWith(plans_->ViewArgs(0)); }
  static KernelError ViewWith(const ViewPlanArgs& args) {
    RoutingPlanView view;
    return ViewRoutingPlan(args, &view);
  }

  reference::Problem problem_;
  std::unique_ptr<Plans> plans_;
};

TEST_F(RoutingPlanViewTest, AnyChangedByteOfTheUsedPartIsDataLoss) {
  std::uint8_t* bytes = plans_->Memory(0).data();
  for (std::size_t i = 0; i < plans_->View(0).used_bytes; ++i) {
    bytes[i] ^= 0x10;
    EXPECT_EQ(View().code, Code::kDataLoss) << "byte " << i;
    bytes[i] ^= 0x10;
  }
  EXPECT_OK(View());
}

TEST_F(RoutingPlanViewTest, DamageIsNamed) {
  plans_->Memory(0).data()[sizeof(PlanHeader)] ^= 1;
  EXPECT_EQ(View().fault, KernelFault::kPlanChecksum);
  Header()->magic = 0x1111;
  KernelError error = View();
  EXPECT_EQ(error.fault, KernelFault::kPlanMagic);
  EXPECT_EQ(error.got, 0x1111u);
  EXPECT_EQ(error.expected, kPlanMagic);
  Header()->magic = kPlanMagic;
  Header()->version = kPlanVersion + 1;
  error = View();
  EXPECT_EQ(error.fault, KernelFault::kPlanVersion);
  EXPECT_EQ(error.got, kPlanVersion + 1);
}

TEST_F(RoutingPlanViewTest, TruncatedPlansAreNamed) {
  ViewPlanArgs args = plans_->ViewArgs(0);
  args.bytes = plans_->View(0).used_bytes - 1;
  EXPECT_EQ(ViewWith(args).fault, KernelFault::kPlanTruncated);
  args.bytes = sizeof(PlanHeader) - 1;
  EXPECT_EQ(ViewWith(args).fault, KernelFault::kPlanTruncated);
  args.bytes = plans_->View(0).used_bytes;
  EXPECT_OK(ViewWith(args));
}

TEST_F(RoutingPlanViewTest, ASoundPlanOfSomethingElseNamesTheField) {
  struct Other {
    KernelFault fault;
    void (*change)(ViewPlanArgs*);
  };
  const Other others[] = {
      {KernelFault::kPlanGroup, [](ViewPlanArgs* args) { args->ids.group_id = 1; }},
      {KernelFault::kPlanId, [](ViewPlanArgs* args) { args->ids.plan_id = 43; }},
      {KernelFault::kPlanRank, [](ViewPlanArgs* args) { args->rank = 1; }},
      {KernelFault::kPlanNumRanks, [](ViewPlanArgs* args) { args->spec.num_ranks = 2; }},
      {KernelFault::kPlanNumExperts, [](ViewPlanArgs* args) { args->spec.num_experts = 8; }},
      {KernelFault::kPlanTopK, [](ViewPlanArgs* args) { args->spec.top_k = 3; }},
      {KernelFault::kPlanAlignment, [](ViewPlanArgs* args) { args->spec.alignment = 0; }},
      {KernelFault::kPlanMaxTokens, [](ViewPlanArgs* args) { args->spec.max_tokens = 7; }},
  };
  for (const Other& other : others) {
    ViewPlanArgs args = plans_->ViewArgs(0);
    other.change(&args);
    const KernelError error = ViewWith(args);
    EXPECT_EQ(error.code, Code::kInvalidArgument) << Text(error);
    EXPECT_EQ(error.fault, other.fault) << Text(error);
  }
  ViewPlanArgs any = plans_->ViewArgs(0);
  any.ids.plan_id = 0;
  EXPECT_OK(ViewWith(any));
}

TEST_F(RoutingPlanViewTest, AnOlderEpochIsAborted) {
  ViewPlanArgs args = plans_->ViewArgs(0);
  args.ids.epoch = 8;
  const KernelError error = ViewWith(args);
  EXPECT_EQ(error.code, Code::kAborted);
  EXPECT_EQ(error.fault, KernelFault::kPlanEpoch);
  EXPECT_EQ(error.got, 7u);
  EXPECT_EQ(error.expected, 8u);
}

// A checksum is no proof of sense: whoever makes a plan up can compute it.
TEST_F(RoutingPlanViewTest, MadeUpNumbersUnderAGoodChecksumAreRefused) {
  Header()->total_bytes += 64;
  Seal();
  EXPECT_EQ(View().fault, KernelFault::kPlanBytes);
  Header()->total_bytes -= 64;

  auto* counts = const_cast<std::int32_t*>(plans_->View(0).counts);
  counts[7] = -5;
  Seal();
  EXPECT_EQ(View().fault, KernelFault::kCountRange);
  EXPECT_EQ(View().code, Code::kDataLoss);
  counts[7] = 0;
  counts[0] += 1;
  Seal();
  EXPECT_EQ(View().fault, KernelFault::kPlanNumTokens);
}

TEST_F(RoutingPlanViewTest, NoBytesReadOutOfBounds) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    Random random(seed);
    SCOPED_TRACE("seed=" + std::to_string(seed));
    const Region copy(static_cast<std::size_t>(Uniform(random, 0, plans_->Memory(0).size())));
    std::memcpy(copy.data(), plans_->Memory(0).data(), copy.size());
    for (int i = 0; i < 4 && copy.size() > sizeof(PlanHeader); ++i) {
      const std::int64_t at = Uniform(random, 0, sizeof(PlanHeader) - 1);
      copy.data()[at] = static_cast<std::uint8_t>(random());
    }
    ViewPlanArgs args = plans_->ViewArgs(0);
    args.plan = copy.data();
    args.bytes = copy.size();
    EXPECT_FALSE(ViewWith(args).ok() && copy.size() < plans_->View(0).used_bytes);
  }
}

TEST_F(RoutingPlanViewTest, AStagedPlanReadsLikeTheOriginal) {
  const RoutingPlanView& view = plans_->View(0);
  const Region stage(view.used_bytes);
  EXPECT_OK(StagePlan(view, stage.data(), stage.size()));
  ViewPlanArgs args = plans_->ViewArgs(0);
  args.plan = stage.data();
  args.bytes = stage.size();
  RoutingPlanView again;
  EXPECT_OK(ViewRoutingPlan(args, &again));
  EXPECT_EQ(again.num_routes, view.num_routes);
  EXPECT_EQ(std::memcmp(again.table, view.table, 6 * sizeof(PlanRoute)), 0);
  EXPECT_EQ(StagePlan(view, stage.data(), stage.size() - 1).fault, KernelFault::kBufferTooSmall);
  RoutingPlanView renamed = view;
  renamed.ids.group_id += 1;
  renamed.ids.epoch += 2;
  EXPECT_OK(StagePlan(renamed, stage.data(), stage.size()));
  ViewPlanArgs other = args;
  EXPECT_EQ(ViewRoutingPlan(other, &again).fault, KernelFault::kPlanGroup);
  other.ids.group_id += 1;
  other.ids.epoch += 2;
  EXPECT_OK(ViewRoutingPlan(other, &again));  // It is sealed anew.
}

TEST_F(RoutingPlanViewTest, BadArgumentsAreRefused) {
  ViewPlanArgs args = plans_->ViewArgs(0);
  args.plan = nullptr;
  EXPECT_EQ(ViewWith(args).fault, KernelFault::kNullArgument);
  args = plans_->ViewArgs(0);
  args.plan = plans_->Memory(0).data() + 1;
  EXPECT_EQ(ViewWith(args).fault, KernelFault::kMisaligned);
  args = plans_->ViewArgs(0);
  args.rank = 3;
  EXPECT_EQ(ViewWith(args).fault, KernelFault::kRank);
}

}  // namespace
}  // namespace epd
