// Goal: calls from the streams of GPUs on several nodes meet use by use, have the eager buffers of every node one at a
// time, end alike on all ranks with what is true of that use, and go on after a worker is lost; and what checks
// this finds each mistake that is planted.
#include <gtest/gtest.h>

#include "tests/unit/daemon/worker/stream_span_world.h"

namespace epd::stream_span {
namespace {

constexpr uint64_t kNumSeeds = 150;
constexpr int kNumEvents = 5000;

TEST(StreamSpanSimulation, NoRuleIsBrokenUnderAnySeed) {
  uint64_t num_good = 0;
  uint64_t num_refused = 0;
  uint64_t num_skipped = 0;
  uint64_t num_formations = 0;
  for (uint64_t seed = 1; seed <= kNumSeeds; ++seed) {
    World world(seed, Sabotage::kNone);
    ASSERT_EQ(world.Run(kNumEvents), "") << "seed " << seed;
    num_good += world.num_good();
    num_refused += world.num_refused();
    num_skipped += world.num_skipped();
    num_formations += world.num_formations();
  }
  // Runs in which nothing happens prove nothing.
  EXPECT_GT(num_good, kNumSeeds * 200);
  EXPECT_GT(num_refused, kNumSeeds * 10);
  EXPECT_GT(num_skipped, kNumSeeds);
  EXPECT_GT(num_formations, kNumSeeds * 3);
}

class Planted : public ::testing::TestWithParam<Sabotage> {};

TEST_P(Planted, MistakeIsFound) {
  for (uint64_t seed = 1; seed <= kNumSeeds; ++seed) {
    if (!World(seed, GetParam()).Run(kNumEvents).empty()) return;
  }
  FAIL() << "no seed shows it";
}

INSTANTIATE_TEST_SUITE_P(Mistakes, Planted,
                         ::testing::Values(Sabotage::kLoseMessage, Sabotage::kForgetApart,
                                           Sabotage::kForgetCause, Sabotage::kForgetStream,
                                           Sabotage::kForgetDemand));

}  // namespace
}  // namespace epd::stream_span
