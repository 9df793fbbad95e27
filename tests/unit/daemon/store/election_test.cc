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

// What a store without space does: it is read, renews leases, and refuses writes.
class RefusingStoreTest : public testing::Test {
 protected:
  // A renewal and a read each step, for `time` or until it leads.
  void Live(absl::Duration time, absl::Duration step) {
    for (const absl::Time end = now_ + time; now_ < end && !election_.leads(); now_ += step) {
      Take(election_.OnLease(now_, now_));
      // What it reads before it leads is of an earlier revision than its key.
      if (!election_.leads()) Take(election_.OnKey(now_, std::nullopt, 9, 100));
    }
  }
  void Take(const Election::Actions& actions) {
    for (const ElectionAction& action : actions) {
      if (const auto* problem = std::get_if<StoreProblem>(&action)) said_.push_back(problem->what);
      if (!std::holds_alternative<Campaign>(action)) continue;
      campaigns_.push_back(now_);
      if (refuses_) {
        Take(election_.OnStoreError(now_, StoreCall::kCampaign,
                                    absl::ResourceExhaustedError("database space exceeded")));
      } else {
        Take(election_.OnWon(now_, 10, {100, 200}));
      }
    }
  }

  Election election_ = AtNode("a");
  absl::Time now_ = absl::FromUnixSeconds(10);
  bool refuses_ = true;
  std::vector<absl::Time> campaigns_;
  std::vector<absl::Status> said_;
};

TEST_F(RefusingStoreTest, IsTriedEverMoreRarelyAndSaidOnce) {
  Live(absl::Minutes(1), absl::Milliseconds(2));
  EXPECT_GE(campaigns_.size(), 20u);
  EXPECT_LE(campaigns_.size(), 45u) << "a wait of 1.5 to 3 s once it has grown";
  ASSERT_EQ(said_.size(), 1u);
  EXPECT_EQ(said_[0].code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(RefusingStoreTest, IsLedWithinTheLongestWaitOnceItTakesWritesAndTheProblemIsOver) {
  Live(absl::Minutes(1), absl::Milliseconds(100));
  refuses_ = false;
  const absl::Time mended = now_;
  Live(absl::Seconds(10), absl::Milliseconds(100));
  EXPECT_TRUE(election_.leads());
  EXPECT_LE(campaigns_.back() - mended, absl::Seconds(3));
  ASSERT_EQ(said_.size(), 2u);
  EXPECT_TRUE(said_[1].ok());
}

// Its key is there until its lease ends, and its address refuses.
TEST_F(RefusingStoreTest, ADeadLeadersKeyDoesNotEndTheProblemAndOneThatIsWellDoes) {
  const auto read = [&] { Take(election_.OnKey(now_, Other(7), 7, 100)); };
  Take(election_.OnLease(now_, now_));
  read();
  for (int i = 0; i < 5; ++i) {
    Take(election_.OnLease(now_, now_));
    Take(election_.OnRefused(now_, Other(7)));
    read();
    now_ += absl::Seconds(1);
  }
  EXPECT_EQ(said_.size(), 1u);
  EXPECT_GE(campaigns_.size(), 3u);
  for (int i = 0; i < 10; ++i, now_ += absl::Seconds(1)) read();
  ASSERT_EQ(said_.size(), 2u);
  EXPECT_TRUE(said_.back().ok());
}

TEST_F(RefusingStoreTest, CallsThatFailInTheSameWayAreOneStateAndOneThatWorksEndsNoOther) {
  const auto fail = [&](StoreCall call, const absl::Status& status) {
    Take(election_.OnStoreError(now_, call, status));
  };
  fail(StoreCall::kLease, absl::UnavailableError("down"));
  fail(StoreCall::kRead, absl::DeadlineExceededError("late"));
  fail(StoreCall::kLease, absl::DeadlineExceededError("late"));
  EXPECT_EQ(said_.size(), 1u) << "no answer, in whatever words";
  Take(election_.OnLease(now_, now_));
  EXPECT_EQ(said_.size(), 1u) << "it is not read yet";
  Take(election_.OnKey(now_, Other(7), 7, 100));
  ASSERT_EQ(said_.size(), 2u);
  EXPECT_TRUE(said_.back().ok());
  fail(StoreCall::kRegister, absl::PermissionDeniedError("no"));
  fail(StoreCall::kRead, absl::UnavailableError("down"));
  Take(election_.OnKey(now_, Other(7), 7, 100));
  ASSERT_EQ(said_.size(), 3u);
  EXPECT_EQ(said_.back().code(), absl::StatusCode::kPermissionDenied);
  Take(election_.OnStoreDone(now_, StoreCall::kRegister));
  ASSERT_EQ(said_.size(), 4u);
  EXPECT_TRUE(said_.back().ok());
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
