// Goal: the guarantees of election.h hold in every run with faults, and each checker fails when its
// guarantee is broken on purpose.
#include "daemon/store/election.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/daemon/store/election_world.h"

namespace epd {
namespace {

std::string Check(const ElectionHistory& history, const ElectionRun& run) {
  for (const std::string& wrong :
       {CheckKeeps(history, !run.faults), CheckAgreement(history), CheckFenced(history),
        CheckGrowing(history), CheckNoOverlap(history),
        CheckReclaimed(history, ElectionWorld::kReclaim)}) {
    if (!wrong.empty()) return wrong;
  }
  return "";
}

TEST(ElectionTest, EveryGuaranteeHoldsInEverySeed) {
  size_t reigns = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    const ElectionRun run{seed};
    const ElectionHistory history = ElectionWorld(run).Run();
    ASSERT_EQ(Check(history, run), "") << "seed " << seed;
    reigns += history.reigns.size();
  }
  EXPECT_GT(reigns, 1000u) << "the runs elect too few leaders to prove anything";
}

TEST(ElectionTest, EpochsGoOnAboveWhatWasGivenOutWhenTheStoreLosesItsData) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    ElectionRun run{seed};
    run.data_loss = true;
    const ElectionHistory history = ElectionWorld(run).Run();
    EXPECT_EQ(CheckReclaimed(history, ElectionWorld::kReclaim), "") << "seed " << seed;
  }
}

TEST(ElectionTest, ALeaderWithoutFaultsIsKept) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    ElectionRun run{seed};
    run.faults = false;
    EXPECT_EQ(Check(ElectionWorld(run).Run(), run), "") << "seed " << seed;
  }
}

struct Planted {
  ElectionBug bug;
  std::string caught_as;
  bool faults = true;
};
class PlantedElectionBugTest : public testing::TestWithParam<Planted> {};

TEST_P(PlantedElectionBugTest, IsCaughtByItsChecker) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    ElectionRun run{seed};
    run.bug = GetParam().bug;
    run.faults = GetParam().faults;
    const std::string wrong = Check(ElectionWorld(run).Run(), run);
    if (wrong.empty()) continue;
    EXPECT_EQ(wrong.substr(0, wrong.find(':')), GetParam().caught_as) << wrong;
    return;
  }
  FAIL() << "no seed caught the planted bug";
}

INSTANTIATE_TEST_SUITE_P(All, PlantedElectionBugTest,
                         testing::Values(Planted{ElectionBug::kNoCompare, "fenced"},
                                         Planted{ElectionBug::kSameBlock, "growing"},
                                         Planted{ElectionBug::kSameRevision, "agreement"},
                                         Planted{ElectionBug::kNoStepDown, "no_overlap"},
                                         Planted{ElectionBug::kNobodyRuns, "reclaimed"},
                                         Planted{ElectionBug::kLeasesExpire, "keeps", false}),
                         [](const testing::TestParamInfo<Planted>& info) {
                           return "Bug" + std::to_string(static_cast<int>(info.param.bug));
                         });

Leadership Other(int64_t revision) { return {"b", "b:1", Incarnation{2}, revision}; }

Election AtNode(const std::string& name) {
  Election::Options options;
  options.node = name;
  options.incarnation = Incarnation{1};
  return Election(options);
}

TEST(ElectionTest, ARefusedAddressIsTakenOverByCompareAndSwapAtOnce) {
  Election election = AtNode("a");
  const absl::Time now = absl::FromUnixSeconds(10);
  election.OnLease(now, now);
  const auto followed = election.OnKey(now, Other(7), 7, 100);
  ASSERT_EQ(followed.size(), 1u);
  ASSERT_TRUE(std::holds_alternative<Follow>(followed[0]));
  const auto tried = election.OnRefused(now, Other(7));
  ASSERT_EQ(tried.size(), 1u);
  EXPECT_EQ(std::get<Campaign>(tried[0]).expected, 7);
  EXPECT_TRUE(election.OnRefused(now, Other(5)).empty()) << "an older leader's refusal is stale";
}

TEST(ElectionTest, LostDataIsNamedAndEpochsStayAboveIt) {
  Election election = AtNode("a");
  const absl::Time now = absl::FromUnixSeconds(10);
  election.OnLease(now, now);
  election.OnKey(now, Other(900), 900, 5000);
  const auto actions = election.OnKey(now, std::nullopt, 2, 0);
  ASSERT_GE(actions.size(), 2u);
  const absl::Status problem = std::get<StoreProblem>(actions.front()).what;
  EXPECT_EQ(problem.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(problem.message()), testing::HasSubstr("etcd has lost its data"));
  EXPECT_EQ(std::get<Campaign>(actions.back()).min_floor, 5000u);
}

TEST(ElectionTest, ANodeWithoutAnAddressNeverRuns) {
  Election::Options options;
  options.can_lead = false;
  Election election(options);
  const absl::Time now = absl::FromUnixSeconds(10);
  election.OnLease(now, now);
  for (const ElectionAction& action : election.OnKey(now, std::nullopt, 5, 0))
    EXPECT_FALSE(std::holds_alternative<Campaign>(action));
}

}  // namespace
}  // namespace epd
