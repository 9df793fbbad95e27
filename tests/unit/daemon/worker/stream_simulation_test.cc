// Goal: whatever the order in which streams arm, the worker claims, and workers are replaced, every
// use of a site gets its own answer, all ranks the same one, one operation at a time has the lane,
// and the streams go on; and what checks this finds each mistake that is planted.
#include <gtest/gtest.h>

#include "tests/unit/daemon/worker/stream_world.h"

namespace epd::streams {
namespace {

constexpr uint64_t kNumSeeds = 300;
constexpr int kNumEvents = 3000;

TEST(StreamSimulationTest, NoRuleIsBrokenUnderAnySeed) {
  uint64_t num_good = 0;
  uint64_t num_bad = 0;
  uint64_t num_replaced = 0;
  for (uint64_t seed = 1; seed <= kNumSeeds; ++seed) {
    StreamWorld world(seed, Sabotage::kNone);
    ASSERT_EQ(world.Run(kNumEvents), "") << "seed " << seed;
    num_good += world.num_good();
    num_bad += world.num_bad();
    num_replaced += world.num_replaced();
  }
  // Runs in which nothing happens prove nothing.
  EXPECT_GT(num_good, kNumSeeds * 50);
  EXPECT_GT(num_bad, kNumSeeds);
  EXPECT_GT(num_replaced, kNumSeeds);
}

class Planted : public ::testing::TestWithParam<Sabotage> {};

TEST_P(Planted, MistakeIsFound) {
  for (uint64_t seed = 1; seed <= kNumSeeds; ++seed) {
    if (!StreamWorld(seed, GetParam()).Run(kNumEvents).empty()) return;
  }
  FAIL() << "no seed shows it";
}

INSTANTIATE_TEST_SUITE_P(Mistakes, Planted,
                         ::testing::Values(Sabotage::kAnswerAtOnce, Sabotage::kSpeakUnmapped,
                                           Sabotage::kLeaveOpen, Sabotage::kForgetStream));

}  // namespace
}  // namespace epd::streams
