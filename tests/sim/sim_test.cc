// Goal: the control plane keeps its invariants in every run, and each invariant fails when it is
// broken on purpose.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/sim/options.h"

namespace epd::sim {
namespace {

constexpr uint64_t kSeeds = 1000;
constexpr int kEvents = 200;

std::string Replay(const Options& options) {
  return "replay: bazel run //tests/sim:sim -- --first=" + std::to_string(options.seed) +
         " --seeds=1 --events=" + std::to_string(options.events) +
         " --bug=" + std::to_string(static_cast<int>(options.bug)) +
         (options.stops ? " --stops" : "") + (options.freezes ? " --freezes" : "") +
         (options.whole ? " --whole" : "") + " --nodes=" + std::to_string(options.num_nodes) +
         " --sabotage=" + std::to_string(static_cast<int>(options.sabotage)) + " --verbose";
}

TEST(SimTest, EveryInvariantHoldsInEverySeed) {
  int ready = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Options options;
    options.seed = seed;
    options.events = kEvents;
    const Outcome outcome = Simulate(options);
    ASSERT_EQ(outcome.violation, "") << Replay(options);
    ASSERT_GE(outcome.steps, kEvents) << Replay(options);
    ready += outcome.num_ready;
  }
  EXPECT_GT(ready, 500) << "the runs form too few groups to prove anything";
}

// Of seeds from 1; what their runs did is added up.
void RunSeeds(uint64_t num_seeds, Options options, Outcome* sums) {
  for (options.seed = 1; options.seed <= num_seeds; ++options.seed) {
    const Outcome outcome = Simulate(options);
    ASSERT_EQ(outcome.violation, "") << Replay(options);
    sums->num_ready += outcome.num_ready;
    sums->num_reformed += outcome.num_reformed;
  }
}

TEST(SimTest, EveryInvariantHoldsInLongerRunsThatFormAgain) {
  Outcome sums;
  ASSERT_NO_FATAL_FAILURE(RunSeeds(100, {.events = 1500}, &sums));
  EXPECT_GT(sums.num_reformed, 20)
      << "the runs form too few groups again to prove anything about cut-offs";
}

TEST(SimTest, EveryInvariantHoldsWhereTheCoordinatorIsStoppedNowAndThen) {
  Outcome sums;
  ASSERT_NO_FATAL_FAILURE(RunSeeds(200, {.events = 600, .stops = true}, &sums));
}

TEST(SimTest, EveryInvariantHoldsWhereAllAreFrozenTogetherNowAndThen) {
  Outcome sums;
  ASSERT_NO_FATAL_FAILURE(RunSeeds(200, {.events = 600, .freezes = true}, &sums));
  EXPECT_GT(sums.num_ready, 200) << "the runs form too few groups to prove anything";
}

TEST(SimTest, EveryInvariantHoldsOverBothPlanes) {
  int good = 0, failed = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Options options;
    options.seed = seed;
    options.events = 60;
    options.whole = true;
    const Outcome outcome = Simulate(options);
    ASSERT_EQ(outcome.violation, "") << Replay(options);
    good += outcome.num_good_calls;
    failed += outcome.num_failed_calls;
  }
  EXPECT_GT(good, 30'000) << "the ranks call too little to prove anything";
  EXPECT_GT(failed, 3'000) << "too little happens to them to prove anything";
}

TEST(SimTest, EveryInvariantHoldsIn64Nodes) {
  Options options;
  options.events = 60;
  options.whole = true;
  options.num_nodes = 64;
  const Outcome outcome = Simulate(options);
  EXPECT_EQ(outcome.violation, "") << Replay(options);
  EXPECT_GT(outcome.num_good_calls, 100);
}

TEST(SimTest, OneSeedIsOneRun) {
  Options options;
  options.seed = 42;
  options.events = 500;
  const Outcome first = Simulate(options);
  const Outcome second = Simulate(options);
  EXPECT_EQ(first.steps, second.steps);
  EXPECT_EQ(first.num_ready, second.num_ready);
  EXPECT_EQ(first.num_failed_joins, second.num_failed_joins);
}

struct Planted {
  Bug bug;
  std::vector<std::string> caught_as;  // One of these invariants must fail first.
  uint64_t first_seed = 1;             // Nearer to one that shows it, where that is rare.
};

class PlantedBugTest : public testing::TestWithParam<Planted> {};

TEST_P(PlantedBugTest, IsCaughtByItsInvariant) {
  const uint64_t first = GetParam().first_seed;
  for (uint64_t seed = first; seed < first + 2000; ++seed) {
    Options options;
    options.seed = seed;
    options.bug = GetParam().bug;
    options.whole = options.bug == Bug::kLeaverLingers;
    options.events = options.whole ? 60 : 1500;  // The rarest one needs long lives.
    options.stops = options.bug == Bug::kDeafCoordinator;
    options.freezes = options.bug == Bug::kClockRunsOn;
    const Outcome outcome = Simulate(options);
    if (outcome.violation.empty()) continue;
    const std::string invariant = outcome.violation.substr(0, outcome.violation.find(':'));
    EXPECT_THAT(GetParam().caught_as, testing::Contains(invariant))
        << outcome.violation << "; " << Replay(options);
    return;
  }
  FAIL() << "no seed caught the planted bug " << static_cast<int>(GetParam().bug);
}

struct PlantedInData {
  world::Sabotage sabotage;
  std::vector<std::string> caught_as;  // As of Planted.
};

class PlantedInDataPlaneTest : public testing::TestWithParam<PlantedInData> {};

TEST_P(PlantedInDataPlaneTest, IsCaughtByItsInvariant) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Options options;
    options.seed = seed;
    options.events = 60;
    options.whole = true;
    options.sabotage = GetParam().sabotage;
    const Outcome outcome = Simulate(options);
    if (outcome.violation.empty()) continue;
    EXPECT_THAT(GetParam().caught_as,
                testing::Contains(outcome.violation.substr(0, outcome.violation.find(':'))))
        << outcome.violation << "; " << Replay(options);
    return;
  }
  FAIL() << "no seed caught it";
}

INSTANTIATE_TEST_SUITE_P(
    All, PlantedInDataPlaneTest,
    testing::Values(PlantedInData{world::Sabotage::kDropAnswer, {"deadlines"}},
                    PlantedInData{world::Sabotage::kDoubleAnswer, {"answers"}},
                    PlantedInData{world::Sabotage::kFlipOutcome, {"cause"}},
                    PlantedInData{world::Sabotage::kOtherCause, {"cause"}},
                    PlantedInData{world::Sabotage::kDecideTwice, {"records"}},
                    PlantedInData{world::Sabotage::kAnswerUndecided, {"records"}},
                    PlantedInData{world::Sabotage::kLoseRecord, {"return"}},
                    PlantedInData{world::Sabotage::kKeepArenas, {"return"}},
                    PlantedInData{world::Sabotage::kShareArenas, {"arenas"}},
                    PlantedInData{world::Sabotage::kLateRows, {"exclusion"}},
                    PlantedInData{world::Sabotage::kWrongExecution, {"reach", "pairing", "cause"}},
                    PlantedInData{world::Sabotage::kLoseMessage, {"deadlines", "agreement"}},
                    PlantedInData{world::Sabotage::kFlipDecision, {"agreement"}},
                    PlantedInData{world::Sabotage::kPhantomRows, {"truth"}}),
    [](const testing::TestParamInfo<PlantedInData>& info) {
      return "Sabotage" + std::to_string(static_cast<int>(info.param.sabotage));
    });

INSTANTIATE_TEST_SUITE_P(
    All, PlantedBugTest,
    testing::Values(
        Planted{Bug::kSplitPlacement, {"one_epoch"}},
        Planted{Bug::kForgetEpochs, {"one_epoch", "stale", "unique_id"}},
        Planted{Bug::kDeadKeepsLease, {"dead_hold"}}, Planted{Bug::kLeakRegion, {"dead_hold"}},
        Planted{Bug::kNoDeadline, {"no_endless"}}, Planted{Bug::kNoCoordinatorTick, {"no_endless"}},
        Planted{Bug::kGrantTwice, {"granted_once"}}, Planted{Bug::kReuseId, {"unique_id"}},
        Planted{Bug::kSwapId, {"unique_id"}}, Planted{Bug::kActOnStaleView, {"stale"}},
        Planted{Bug::kAnswerTwice, {"answered_once"}},
        Planted{Bug::kSwallowAnswer, {"answered_once"}}, Planted{Bug::kWrongBase, {"cut_off"}},
        Planted{Bug::kLastCause, {"first_cause"}}, Planted{Bug::kLoseLastViews, {"settled"}},
        Planted{Bug::kSplitCommunicator, {"one_communicator"}},
        Planted{Bug::kMixTenants, {"own_tenant"}}, Planted{Bug::kSpreadDeath, {"unharmed"}, 500},
        Planted{Bug::kSpreadWorkerDeath, {"unharmed"}}, Planted{Bug::kCrossWorkers, {"own_worker"}},
        Planted{Bug::kAnswerForOthers, {"all_ready"}},
        Planted{Bug::kDeafCoordinator, {"hears_first"}},
        Planted{Bug::kLeaverLingers, {"left_nothing"}},
        Planted{Bug::kClockRunsOn, {"frozen_together"}}),
    [](const testing::TestParamInfo<Planted>& info) {
      return "Bug" + std::to_string(static_cast<int>(info.param.bug));
    });

}  // namespace
}  // namespace epd::sim
