// Goal: whatever the order in which streams arm, the worker claims, and workers are replaced, every
// use of a site gets its own answer, all ranks the same one, one operation at a time has the eager buffers,
// rows that a rank has no slots for fail that use on every rank or are dropped, as the group wants it,
// and the streams go on, whoever moves the rows; and what checks this finds each mistake that is
// planted.
#include <gtest/gtest.h>

#include "tests/unit/daemon/worker/stream_world.h"

namespace epd::streams {
namespace {

constexpr uint64_t kNumSeeds = 300;
constexpr int kNumEvents = 3000;

class StreamSimulation : public ::testing::TestWithParam<Executor> {};
INSTANTIATE_TEST_SUITE_P(Executors, StreamSimulation,
                         ::testing::Values(Executor::kWorker, Executor::kClient));

TEST_P(StreamSimulation, NoRuleIsBrokenUnderAnySeed) {
  uint64_t num_good = 0;
  uint64_t num_bad = 0;
  uint64_t num_replaced = 0;
  uint64_t num_overflows = 0;
  for (uint64_t seed = 1; seed <= kNumSeeds; ++seed) {
    StreamWorld world(seed, GetParam(), Sabotage::kNone);
    ASSERT_EQ(world.Run(kNumEvents), "") << "seed " << seed;
    num_good += world.num_good();
    num_bad += world.num_bad();
    num_replaced += world.num_replaced();
    num_overflows += world.num_overflows();
  }
  // Runs in which nothing happens prove nothing.
  EXPECT_GT(num_good, kNumSeeds * 50);
  EXPECT_GT(num_bad, kNumSeeds);
  EXPECT_GT(num_replaced, kNumSeeds);
  EXPECT_GT(num_overflows, kNumSeeds);
}

struct Mistake {
  Executor executor;
  Sabotage sabotage;
};
class Planted : public ::testing::TestWithParam<Mistake> {};

TEST_P(Planted, MistakeIsFound) {
  for (uint64_t seed = 1; seed <= kNumSeeds; ++seed) {
    StreamWorld world(seed, GetParam().executor, GetParam().sabotage);
    if (!world.Run(kNumEvents).empty()) return;
  }
  FAIL() << "no seed shows it";
}

INSTANTIATE_TEST_SUITE_P(Mistakes, Planted,
                         ::testing::Values(Mistake{Executor::kWorker, Sabotage::kAnswerAtOnce},
                                           Mistake{Executor::kWorker, Sabotage::kSpeakUnmapped},
                                           Mistake{Executor::kWorker, Sabotage::kLeaveOpen},
                                           Mistake{Executor::kWorker, Sabotage::kForgetStream},
                                           Mistake{Executor::kWorker, Sabotage::kTellLate},
                                           Mistake{Executor::kClient, Sabotage::kAnswerAtOnce},
                                           Mistake{Executor::kClient, Sabotage::kSpeakUnmapped},
                                           Mistake{Executor::kClient, Sabotage::kLeaveOpen},
                                           Mistake{Executor::kClient, Sabotage::kTellLate},
                                           Mistake{Executor::kClient, Sabotage::kPushUngated},
                                           Mistake{Executor::kClient, Sabotage::kPushLate}));

}  // namespace
}  // namespace epd::streams
