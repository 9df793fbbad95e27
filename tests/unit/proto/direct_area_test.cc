// Goal: whatever ranks, worker, its ghost, epd, deaths and a hostile peer do, and in whichever order, a call that ranks
// make without the worker has one outcome on all of them, nobody who is told that it is good has read other rows, and
// nobody waits for ever; and the walk that shows it notices when a rule of the protocol is broken.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "tests/unit/proto/direct_area_model.h"

namespace epd {
namespace {

DirectWalkResult WalkAndTell(const char* what, const DirectWalk& walk) {
  const DirectWalkResult result = WalkDirectArea(walk);
  std::printf("%s: %llu states, %llu ends\n", what,
              static_cast<unsigned long long>(result.num_states),
              static_cast<unsigned long long>(result.num_ends));
  return result;
}

TEST(DirectAreaTest, RanksThatAllCallEndWellAndNobodyWaitsForEver) {
  for (const int num_ranks : {2, 3}) {
    const DirectWalkResult result = WalkAndTell("quiet", {.num_ranks = num_ranks});
    EXPECT_EQ(result.violation, "");
    EXPECT_GT(result.num_good, 0u);
    EXPECT_EQ(result.num_failed, 0u);
  }
}

TEST(DirectAreaTest, AllRanksHaveOneOutcomeWhoeverFailsOrDies) {
  const DirectWalkResult all =
      WalkAndTell("two ranks, all deaths and failures",
                  {.num_ranks = 2, .worker_dies = true, .rank_dies = true, .worker_fails = true});
  EXPECT_EQ(all.violation, "");
  EXPECT_GT(all.num_good, 0u);
  EXPECT_GT(all.num_failed, 0u);
  EXPECT_EQ(WalkAndTell("failures", {.num_ranks = 3, .worker_fails = true}).violation, "");
  EXPECT_EQ(WalkAndTell("the worker dies", {.num_ranks = 3, .worker_dies = true}).violation, "");
  EXPECT_EQ(WalkAndTell("a rank dies", {.num_ranks = 3, .rank_dies = true}).violation, "");
}

TEST(DirectAreaTest, AHostilePeerGivesNoHonestRankWrongRowsWithAGoodOutcome) {
  EXPECT_EQ(
      WalkAndTell("hostile",
                  {.num_ranks = 2, .hostile = true, .worker_dies = true, .worker_fails = true})
          .violation,
      "");
  EXPECT_EQ(
      WalkAndTell("hostile among three", {.num_ranks = 3, .hostile = true, .worker_fails = true})
          .violation,
      "");
}

struct Planted {
  DirectBug bug;
  const char* name;
  DirectWalk walk;
  const char* found;
};

class DirectAreaBugTest : public testing::TestWithParam<Planted> {};

TEST_P(DirectAreaBugTest, IsFound) {
  DirectWalk walk = GetParam().walk;
  walk.bug = GetParam().bug;
  EXPECT_NE(WalkAndTell(GetParam().name, walk).violation.find(GetParam().found), std::string::npos)
      << WalkDirectArea(walk).violation;
}

constexpr DirectWalk kQuiet{.num_ranks = 2};
constexpr DirectWalk kFails{.num_ranks = 2, .worker_fails = true};
constexpr DirectWalk kWorkerDies{.num_ranks = 2, .worker_dies = true};
constexpr DirectWalk kHostile{.num_ranks = 3, .hostile = true, .worker_fails = true};

INSTANTIATE_TEST_SUITE_P(
    Planted, DirectAreaBugTest,
    testing::Values(
        Planted{DirectBug::kPublishWithoutCompare, "PublishWithoutCompare", kFails, "not one"},
        Planted{DirectBug::kGenerationNotCompared, "GenerationNotCompared", kFails, "not one"},
        Planted{DirectBug::kAnswerBeforeEnding, "AnswerBeforeEnding", kFails, "not one"},
        Planted{DirectBug::kEndAnnouncedOnly, "EndAnnouncedOnly", kFails, "not one"},
        Planted{DirectBug::kNoEndAfterDeath, "NoEndAfterDeath", kWorkerDies, "not one"},
        Planted{DirectBug::kNoSecondLook, "NoSecondLook", kFails, "not one"},
        Planted{DirectBug::kNoLookAtAnnounce, "NoLookAtAnnounce", kQuiet, "waits for ever"},
        Planted{DirectBug::kHandsOverAfterAnnounce, "HandsOverAfterAnnounce", kQuiet,
                "waits for ever"},
        Planted{DirectBug::kIgnoresHandedOver, "IgnoresHandedOver", kQuiet, "waits for ever"},
        Planted{DirectBug::kWritesBeforeRead, "WritesBeforeRead", kQuiet, "wrong rows"},
        Planted{DirectBug::kWritesBeforeWithdrawn, "WritesBeforeWithdrawn", kHostile, "wrong rows"},
        Planted{DirectBug::kNoLookAfterRead, "NoLookAfterRead", kHostile, "wrong rows"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace epd
