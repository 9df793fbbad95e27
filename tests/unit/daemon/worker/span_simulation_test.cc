// Goal: operations over several nodes end alike everywhere, without deadlock and without two of
// them in one region, whatever the streams and the ranks do; and the checks notice each broken
// promise.
#include "tests/unit/daemon/worker/span_simulation.h"

#include <gtest/gtest.h>

namespace epd {
namespace {

constexpr int kEvents = 6000;

TEST(SpanSimulation, HoldsItsInvariants) {
  SpanSimulationResult all;
  for (uint64_t seed = 1; seed <= 120; ++seed) {
    const SpanSimulationResult result = SimulateSpan(seed, kEvents, SpanSabotage::kNone);
    ASSERT_EQ(result.violation, "") << "seed " << seed;
    all.num_good += result.num_good;
    all.num_failed += result.num_failed;
    all.num_revoked += result.num_revoked;
    all.num_formations += result.num_formations;
    all.num_turns += result.num_turns;
    all.num_cancelled += result.num_cancelled;
  }
  // It does what it is for.
  EXPECT_GT(all.num_good, 1000u);
  EXPECT_GT(all.num_failed, 500u);
  EXPECT_GT(all.num_revoked, 10u);
  EXPECT_GT(all.num_formations, 50u);
  EXPECT_GT(all.num_turns, 1000u);
  EXPECT_GT(all.num_cancelled, 10u);
}

class Sabotaged : public testing::TestWithParam<SpanSabotage> {};

TEST_P(Sabotaged, IsNoticed) {
  for (uint64_t seed = 1; seed <= 120; ++seed) {
    if (!SimulateSpan(seed, kEvents, GetParam()).violation.empty()) return;
  }
  FAIL() << "120 seeds and no check has noticed";
}

INSTANTIATE_TEST_SUITE_P(All, Sabotaged,
                         testing::Values(SpanSabotage::kLoseMessage, SpanSabotage::kSwapMessages,
                                         SpanSabotage::kForgetRevoke, SpanSabotage::kFlipOutcome,
                                         SpanSabotage::kLateRows, SpanSabotage::kPhantomRows,
                                         SpanSabotage::kSharedRegion, SpanSabotage::kForgetBases,
                                         SpanSabotage::kSkipTurn, SpanSabotage::kForgetCancel));

}  // namespace
}  // namespace epd
