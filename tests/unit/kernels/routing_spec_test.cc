// Goal: a spec out of range is refused under the name of the field that is wrong.
#include "kernels/routing_spec.h"

#include <gtest/gtest.h>

namespace epd {
namespace {

RoutingSpec Good() {
  RoutingSpec spec;
  spec.num_ranks = 2;
  spec.num_experts = 3;
  spec.top_k = 4;
  spec.alignment = 16;
  spec.max_tokens = 0;
  return spec;
}

TEST(RoutingSpecTest, ALegalSpecPasses) { EXPECT_TRUE(CheckRoutingSpec(Good()).ok()); }

TEST(RoutingSpecTest, EveryFieldOutOfRangeIsNamed) {
  struct Case {
    KernelFault fault;
    void (*change)(RoutingSpec*);
  };
  const Case cases[] = {
      {KernelFault::kNumRanks, [](RoutingSpec* spec) { spec->num_ranks = 0; }},
      {KernelFault::kNumRanks, [](RoutingSpec* spec) { spec->num_ranks = kMaxRanks + 1; }},
      {KernelFault::kNumExperts, [](RoutingSpec* spec) { spec->num_experts = 0; }},
      {KernelFault::kNumExperts, [](RoutingSpec* spec) { spec->num_experts = kMaxExperts + 1; }},
      {KernelFault::kTopK, [](RoutingSpec* spec) { spec->top_k = 0; }},
      {KernelFault::kTopK, [](RoutingSpec* spec) { spec->top_k = kMaxTopK + 1; }},
      {KernelFault::kAlignment, [](RoutingSpec* spec) { spec->alignment = 3; }},
      {KernelFault::kAlignment, [](RoutingSpec* spec) { spec->alignment = -8; }},
      {KernelFault::kMaxTokens, [](RoutingSpec* spec) { spec->max_tokens = -1; }},
      {KernelFault::kMaxTokens, [](RoutingSpec* spec) { spec->max_tokens = 1LL << 40; }},
  };
  for (const Case& bad : cases) {
    RoutingSpec spec = Good();
    bad.change(&spec);
    const KernelError error = CheckRoutingSpec(spec);
    EXPECT_EQ(error.code, Code::kInvalidArgument);
    EXPECT_EQ(error.fault, bad.fault);
  }
}

TEST(RoutingSpecTest, AnOwnerThatIsNoRankNamesTheExpert) {
  const std::int32_t owner[] = {0, 1, 2};
  RoutingSpec spec = Good();
  spec.expert_owner = owner;
  const KernelError error = CheckRoutingSpec(spec);
  EXPECT_EQ(error.fault, KernelFault::kExpertOwner);
  EXPECT_EQ(error.index, 2);
  EXPECT_EQ(error.got, 2u);
  EXPECT_EQ(error.expected, 2u);
}

}  // namespace
}  // namespace epd
