// Goal: what passes through a group in each of its states, and which executions it tells epd it has
// begun.
#include "client/c/group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace epd::client {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr Program kProgram = {1, 2, 3};

class GroupTest : public ::testing::Test {
 protected:
  static std::shared_ptr<const Formation> MakeFormation(uint64_t number) {
    auto formation = std::make_shared<Formation>();
    formation->group_id = 7;
    formation->epoch = 1;
    formation->formation = number;
    formation->spec.deadlines.form = 50'000'000;
    return formation;
  }
  void Ready(uint64_t formation = 1) { group_.OnJoined(MakeFormation(formation)); }
  void ReformTo(bool wait, uint64_t formation = 1) {
    group_.OnReform({.group_id = 7,
                     .formation = formation,
                     .cause = {Code::kUnavailable, "rank=1 is gone"},
                     .wait = wait});
  }
  Status Begin(CallKey key = {.program = kProgram}, uint32_t rank = 2) {
    last_key_ = key;
    return group_.BeginCall(rank, may_wait_, &last_key_, &formation_);
  }
  void End(bool failed = false) {
    formation_.reset();
    group_.EndCall(2, failed);
  }

  std::vector<Drained> sent_;
  Group group_{"moe", {2, 5}, [this](const Drained& drained) { sent_.push_back(drained); }};
  bool may_wait_ = true;
  CallKey last_key_;
  std::shared_ptr<const Formation> formation_;
};

TEST_F(GroupTest, ACallOfAnotherRankIsRefused) {
  Ready();
  const Status status = Begin({}, 3);
  EXPECT_EQ(status.code, Code::kInvalidArgument);
  EXPECT_THAT(status.message, HasSubstr("holds rank 2, 5 of the group, not rank 3"));
}

TEST_F(GroupTest, ExecutionsCountPerRankAndProgram) {
  Ready();
  for (uint64_t expected : {0, 1, 2}) {
    ASSERT_TRUE(Begin().ok());
    EXPECT_EQ(last_key_.execution, expected);
    End();
  }
  ASSERT_TRUE(Begin({.program = {9}}).ok());
  EXPECT_EQ(last_key_.execution, 0u);
  End();
  ASSERT_TRUE(Begin({.program = kProgram}, 5).ok());
  EXPECT_EQ(last_key_.execution, 0u);
  End();
  EXPECT_EQ(group_.BeginExecution(2, kProgram), 3u);
}

TEST_F(GroupTest, NothingIsLetInThatWouldHaveToWaitAndMayNot) {
  may_wait_ = false;
  Ready();
  ReformTo(/*wait=*/true);
  EXPECT_TRUE(Begin().ok());
  EXPECT_EQ(formation_, nullptr);
  EXPECT_EQ(group_.BeginExecution(2, kProgram), 0u) << "it has taken no number";
  Ready(2);
  ASSERT_TRUE(Begin().ok());
  EXPECT_NE(formation_, nullptr);
  End();
}

TEST_F(GroupTest, DrainedIsSaidOnceTheLastCallHasEnded) {
  Ready();
  ASSERT_TRUE(Begin().ok());
  ReformTo(/*wait=*/true);
  EXPECT_THAT(sent_, SizeIs(0));
  End();
  ASSERT_THAT(sent_, SizeIs(1));
  EXPECT_EQ(sent_[0].group_id, 7u);
  EXPECT_EQ(sent_[0].formation, 1u);
  ASSERT_THAT(sent_[0].counts, SizeIs(1));
  EXPECT_EQ(sent_[0].counts[0].rank, 2u);
  EXPECT_EQ(sent_[0].counts[0].program, std::string(kProgram.begin(), kProgram.end()));
  EXPECT_EQ(sent_[0].counts[0].begun, 1u);
}

TEST_F(GroupTest, ANumberThatWasHandedOutButNeverArmedIsNotBegun) {
  Ready();
  EXPECT_EQ(group_.BeginExecution(2, kProgram), 0u);
  ReformTo(/*wait=*/true);
  ASSERT_THAT(sent_, SizeIs(1));
  EXPECT_THAT(sent_[0].counts, SizeIs(0));
}

TEST_F(GroupTest, ARankWhoseLastCallFailedSaysSo) {
  Ready();
  for (const bool failed : {false, true, false, true}) {
    ASSERT_TRUE(Begin().ok());
    End(failed);
  }
  ReformTo(/*wait=*/true);
  ASSERT_THAT(sent_, SizeIs(1));
  EXPECT_EQ(sent_[0].counts[0].begun, 4u);
  EXPECT_TRUE(sent_[0].counts[0].failed);
  Ready(2);
  ASSERT_TRUE(Begin().ok());
  End();
  ReformTo(/*wait=*/true, 2);
  EXPECT_FALSE(sent_.back().counts[0].failed);
}

// So the first call after READY has the number that the peers' first call has.
TEST_F(GroupTest, CallsThatTryAgainAndAreRefusedTakeNoNumber) {
  Ready();
  ASSERT_TRUE(Begin().ok());
  End(/*failed=*/true);
  ReformTo(/*wait=*/false);
  for (int tries = 0; tries < 3; ++tries) EXPECT_EQ(Begin().code, Code::kUnavailable);
  const uint64_t execution = group_.BeginExecution(2, kProgram);
  EXPECT_EQ(Begin({.program = kProgram, .execution = execution}).code, Code::kUnavailable);
  EXPECT_THAT(sent_, SizeIs(1));
  Ready(2);
  EXPECT_EQ(Begin({.program = kProgram, .execution = execution}).code, Code::kAborted)
      << "the other calls of a refused execution";
  ASSERT_TRUE(Begin().ok());
  EXPECT_EQ(last_key_.execution, 1u);
  End();
  EXPECT_EQ(group_.BeginExecution(2, kProgram), 2u);
}

TEST_F(GroupTest, ARankThatTriesAgainIsHeldUpUntilAllAreThereOrForAMoment) {
  using std::chrono::milliseconds;
  Ready();
  ReformTo(/*wait=*/false);
  EXPECT_EQ(Begin().code, Code::kUnavailable);
  for (const bool by_program : {false, true}) {
    const Clock::time_point start = Clock::now();
    if (by_program) {
      EXPECT_EQ(group_.BeginExecution(2, kProgram), kRefusedExecution);
      EXPECT_LT(Clock::now() - start, milliseconds(100)) << "under the locks of who begins it";
      EXPECT_EQ(Begin({.program = kProgram, .execution = kRefusedExecution}).code,
                Code::kUnavailable);
    } else {
      EXPECT_EQ(Begin().code, Code::kUnavailable);
    }
    EXPECT_GE(Clock::now() - start, milliseconds(100));
  }
  std::thread reader([&] {
    std::this_thread::sleep_for(milliseconds(20));
    Ready(2);
  });
  EXPECT_TRUE(Begin().ok()) << "its rank came back while it was held up";
  reader.join();
  EXPECT_EQ(formation_->formation, 2u);
  End();
}

TEST_F(GroupTest, WhileAPeerIsGoneCallsFailAtOnceAndTheFirstCountsAsBegun) {
  Ready();
  ReformTo(/*wait=*/false);
  const Status status = Begin();
  EXPECT_EQ(status.code, Code::kUnavailable);
  EXPECT_EQ(status.message, "rank=1 is gone");
  EXPECT_EQ(last_key_.execution, 0u);
  ASSERT_NE(formation_, nullptr) << "of which the worker may know an earlier cause";
  EXPECT_EQ(formation_->formation, 1u);
  ASSERT_THAT(sent_, SizeIs(2));
  EXPECT_EQ(sent_[1].counts[0].begun, 1u);
  EXPECT_TRUE(sent_[1].counts[0].failed);
}

TEST_F(GroupTest, WhileItIsFormedAnewCallsWaitForReady) {
  Ready();
  ReformTo(/*wait=*/true);
  std::thread reader([&] { Ready(2); });
  EXPECT_TRUE(Begin().ok());
  reader.join();
  EXPECT_EQ(formation_->formation, 2u);
  EXPECT_TRUE(group_.IsCurrent(*formation_));
  EXPECT_FALSE(group_.IsCurrent(*MakeFormation(1)));
  End();
}

TEST_F(GroupTest, AWaitForReadyEndsWithTheFormingDeadlineAndDoesNotCount) {
  Ready();
  ReformTo(/*wait=*/true);
  const Status status = Begin();
  EXPECT_EQ(status.code, Code::kDeadlineExceeded);
  EXPECT_THAT(status.message, HasSubstr("within 50 ms"));
  EXPECT_EQ(formation_, nullptr);
  EXPECT_THAT(sent_.back().counts, SizeIs(0));
}

TEST_F(GroupTest, WhatIsToBePutIntoAStreamWaitsAsCallsDo) {
  Ready();
  EXPECT_TRUE(group_.AwaitReady().ok());
  ReformTo(/*wait=*/true);
  EXPECT_EQ(group_.AwaitReady().code, Code::kDeadlineExceeded);
  std::thread reader([&] { Ready(2); });
  EXPECT_TRUE(group_.AwaitReady().ok());
  reader.join();
  ReformTo(/*wait=*/false, 2);
  EXPECT_EQ(group_.AwaitReady().message, "rank=1 is gone");
}

TEST_F(GroupTest, AReformOfAnOlderFormationIsIgnored) {
  Ready(3);
  ReformTo(/*wait=*/false, 2);
  EXPECT_TRUE(Begin().ok());
  EXPECT_THAT(sent_, SizeIs(0));
  End();
}

TEST_F(GroupTest, AnEndedGroupStaysEndedAndGivesItsFirstCause) {
  Ready();
  group_.OnEnded({Code::kFailedPrecondition, "an operator closed it"});
  group_.OnEnded({Code::kUnavailable, "later"});
  Ready(2);
  EXPECT_EQ(Begin().message, "an operator closed it");
}

TEST_F(GroupTest, CloseWaitsForCallsInFlight) {
  Ready();
  ASSERT_TRUE(Begin().ok());
  const Status cause{Code::kFailedPrecondition, "left"};
  EXPECT_EQ(group_.Close(cause, Clock::now()).code, Code::kDeadlineExceeded);
  End();
  EXPECT_TRUE(group_.Close(cause, Clock::now()).ok());
}

}  // namespace
}  // namespace epd::client
