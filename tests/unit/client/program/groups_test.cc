// Goal: an alias means what the last join said; a lost session fails one execution and no
// more.
#include "client/program/groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "tests/unit/client/program/fake_epd_client.h"
#include "tests/unit/client/program/groups_fixture.h"

namespace epd::program {
namespace {

using testing::HasSubstr;

TEST_F(GroupsTest, CallBeforeBootstrapSaysWhatToDo) {
  const Status status = Call(Site(), 1);
  EXPECT_EQ(status.code, Code::kFailedPrecondition);
  EXPECT_THAT(status.message, HasSubstr("ep_bootstrap"));
}

TEST_F(GroupsTest, AGroupPerDomainIsJoinedInOneSession) {
  ASSERT_TRUE(groups_.Join(Asked().Read()).ok());
  EXPECT_EQ(fake::num_groups(), 2);
  EXPECT_EQ(fake::num_sessions(), 1);
  EXPECT_TRUE(Call(Site(), 1).ok());
  EXPECT_TRUE(Call(Site(), 1, {}, 1, 0).ok());
  EXPECT_EQ(groups_.Join(Asked().Read()).code, Code::kFailedPrecondition);
}

// A group that nobody has joined: `describe` says what its alias means.
class RanksByCallTest : public GroupsTest {
 protected:
  RanksByCallTest() {
    asked = this;
    num_asked = 0;
  }

  static int Describe(const char* alias, std::int64_t num_ranks, epd_error* error) {
    ++num_asked;
    if (code != EPD_OK) {
      std::snprintf(error->message, sizeof error->message, "[epd:UNAVAILABLE] no daemon");
      return std::exchange(code, EPD_OK);
    }
    EXPECT_EQ(num_ranks, 2);
    Asked group;
    group.group.alias = alias;
    group.group.joins_by_call = 1;
    group.Hold({});
    EXPECT_TRUE(asked->groups_.Join(group.Read()).ok());
    return EPD_OK;
  }

  static inline RanksByCallTest* asked = nullptr;
  static inline int num_asked = 0;
  static inline int code = EPD_OK;
};

TEST_F(RanksByCallTest, EachRankJoinsAtItsFirstCallWithASessionOfItsOwn) {
  groups_.DescribeWith("def", Describe);
  const Site site;
  EXPECT_TRUE(Call(site, 1, {}, 0, 1).ok());
  EXPECT_EQ(fake::num_groups(), 1);
  EXPECT_TRUE(Call(site, 1, {}, 0, 0).ok());
  EXPECT_TRUE(Call(Site(16), 2, {}, 0, 1).ok()) << "sizes of rows are none of the group's";
  EXPECT_EQ(fake::num_groups(), 2);
  EXPECT_EQ(fake::num_sessions(), 2);
  EXPECT_EQ(num_asked, 1);
}

TEST_F(RanksByCallTest, WhyNobodyKnowsTheAliasIsTheCallsError) {
  EXPECT_THAT(Call(Site(), 1).message, HasSubstr("not bootstrapped"));
  groups_.DescribeWith("other", Describe);
  EXPECT_THAT(Call(Site(), 1).message, HasSubstr("not bootstrapped"));
  groups_.DescribeWith("default", Describe);
  code = 14;
  EXPECT_EQ(Call(Site(), 2).code, Code::kUnavailable);
  EXPECT_TRUE(Call(Site(), 3).ok());
}

TEST_F(RanksByCallTest, ALostSessionFailsOneExecutionAndTheNextJoinsAgain) {
  groups_.DescribeWith("default", Describe);
  const Site site;
  EXPECT_TRUE(Call(site, 1).ok());
  fake::CutSessions();
  EXPECT_EQ(Call(site, 2).code, Code::kUnavailable);
  EXPECT_TRUE(Call(site, 3).ok());
  EXPECT_EQ(fake::num_sessions(), 1);
}

TEST_F(GroupsTest, WhatTheProgramIsGoesWithEachJoin) {
  Asked asked;
  asked.group.program = "decode";
  asked.group.metadata = "stage=ffn v=7";
  ASSERT_TRUE(groups_.Join(asked.Read()).ok());
  EXPECT_EQ(fake::last_join(), "decode|stage=ffn v=7");
}

TEST_F(GroupsTest, ARankOfAnotherProcessIsNamed) {
  ASSERT_TRUE(groups_.Join(Asked().Read()).ok());
  const Status status = Call(Site(), 1, {}, 1, 1);
  EXPECT_EQ(status.code, Code::kInvalidArgument);
  EXPECT_THAT(status.message, HasSubstr("group=job/default/1 epoch=1 rank=1 phase=begin"));
  EXPECT_THAT(status.message, HasSubstr("domain 1, position 1"));
}

TEST_F(GroupsTest, AnExecutableTracedForOtherSizesNamesTheField) {
  Asked asked;
  asked.spec.hidden = 16;
  ASSERT_TRUE(groups_.Join(asked.Read()).ok());
  EXPECT_THAT(Call(Site(), 1).message, HasSubstr("hidden_dim=8"));
  EXPECT_EQ(last_.execution, 0u) << "the call is made, so that every rank is told";
  EXPECT_TRUE(Call(Site(/*hidden=*/0), 2).ok()) << "prepare knows no hidden size";
  groups_.Finalize("default");
  asked = Asked();
  asked.spec.recv_capacity_per_rank = 63;
  ASSERT_TRUE(groups_.Join(asked.Read()).ok());
  EXPECT_THAT(Call(Site(), 3).message, HasSubstr("recv_capacity_per_rank=64"));
}

TEST_F(GroupsTest, ACallThatCannotBeMadeIsRefusedUnderItsNumber) {
  Asked asked;
  asked.spec.num_experts = 8;
  ASSERT_TRUE(groups_.Join(asked.Read()).ok());
  ActiveCall call;
  const Site other_size;
  ASSERT_TRUE(Begin(other_size.At(1, 0, 0), &call).ok());
  EXPECT_EQ(call.refusal().code, Code::kInvalidArgument);
  EXPECT_THAT(call.refusal().message, HasSubstr("num_experts=4"));
  call.End(call.refusal());

  groups_.Finalize("default");
  ASSERT_TRUE(groups_.Join(Asked().Read()).ok());
  const Site site;
  ActiveCall first, second;
  ASSERT_TRUE(Begin(site.At(2, 0, 0), &first).ok());
  EXPECT_TRUE(first.refusal().ok());
  ASSERT_TRUE(Begin(site.At(3, 0, 0), &second).ok());
  EXPECT_EQ(second.refusal().code, Code::kFailedPrecondition);
  EXPECT_THAT(second.refusal().message, HasSubstr("two executions"));
  EXPECT_EQ(second.number().execution, first.number().execution + 1);
  second.End(second.refusal());
  first.End({});
  EXPECT_TRUE(Call(site, 4).ok()) << "the next execution is none of theirs";
}

TEST_F(GroupsTest, AProgramOfAnotherTableOfOwnersIsRefused) {
  Asked asked;
  const std::uint32_t owner[] = {1, 0, 0, 1};
  asked.spec.expert_owner = owner;
  asked.group.owners = 77;
  ASSERT_TRUE(groups_.Join(asked.Read()).ok());
  EXPECT_THAT(Call(Site(), 1).message, HasSubstr("expert_owner"));
}

TEST_F(GroupsTest, ACallAtARankOfAnotherProcessNamesThePlaceTheDevicesAndTheHolder) {
  Asked asked;
  const std::vector<epd_program_rank> elsewhere =
      Asked::RanksOf({{1, 1, "device id 7 (platform cpu) of process 3"}});
  asked.group.elsewhere = elsewhere.data();
  asked.group.num_elsewhere = elsewhere.size();
  asked.group.devices = "process 0, device ids 0, 1, 2, platform cpu";
  ASSERT_TRUE(groups_.Join(asked.Read()).ok());
  const Status refused = Call(Site(), 1, {}, 1, 1);
  EXPECT_EQ(refused.code, Code::kInvalidArgument);
  EXPECT_THAT(refused.message, HasSubstr("device ids 0, 1, 2, platform cpu) runs as domain 1, "
                                         "position 1 along ep of the program's mesh, which device "
                                         "id 7 (platform cpu) of process 3 holds"));
}

TEST_F(GroupsTest, InAGroupJoinedByRankThePositionCountsTheRanksHeldHere) {
  Asked asked;
  asked.spec.num_ranks = 4;
  asked.group.by_rank = 1;
  asked.Hold({{0, 1, "cpu:0"}, {0, 3, "cpu:1"}});
  ASSERT_TRUE(groups_.Join(asked.Read()).ok());
  Site site;
  site.sizes.ranks = 4;
  EXPECT_THAT(Call(site, 1).message, HasSubstr("joined_by_rank")) << "a program of mesh positions";
  site.sizes.by_rank = 1;
  ActiveCall call;
  ASSERT_TRUE(Begin(site.At(1, 0, 1), &call).ok());
  EXPECT_EQ(call.rank(), 3u);
  call.End({});
  EXPECT_EQ(Call(site, 1, {}, 0, 2).code, Code::kInvalidArgument) << "only two ranks are held here";
}

TEST_F(GroupsTest, APlaceIsResolvedWithoutACall) {
  ASSERT_TRUE(groups_.Join(Asked().Read()).ok());
  std::uint32_t rank = 7;
  const Site site;
  ASSERT_TRUE(groups_.Resolve(site.At(1, 0, 1), &rank).ok());
  EXPECT_EQ(rank, 1u);
  EXPECT_EQ(groups_.Resolve(site.At(1, 1, 1), &rank).code, Code::kInvalidArgument);
}

TEST_F(GroupsTest, WaitingJoinsAgainOnceTheLossWasReported) {
  EXPECT_EQ(groups_.Wait("default").code, Code::kFailedPrecondition);
  ASSERT_TRUE(groups_.Join(Asked().Read()).ok());
  EXPECT_TRUE(groups_.Wait("default").ok());
  fake::CutSessions();
  EXPECT_EQ(groups_.Wait("default").code, Code::kUnavailable) << "domain 0";
  EXPECT_EQ(groups_.Wait("default").code, Code::kUnavailable) << "domain 1";
  EXPECT_TRUE(groups_.Wait("default").ok());
  EXPECT_EQ(fake::num_groups(), 2);
}

TEST_F(GroupsTest, ACallThatIsNoPartOfAnExecutionIsOneOfItsOwn) {
  ASSERT_TRUE(groups_.Join(Asked().Read()).ok());
  const Site site;
  for (std::uint64_t n = 0; n < 3; ++n) {
    ASSERT_TRUE(Call(site, 0).ok());
    EXPECT_EQ(last_.execution, n);
    EXPECT_EQ(last_.occurrence, 0u);
  }
}

TEST_F(GroupsTest, ALaterCallOfAnExecutionThatWasBegunHasItsNumberUntilTheGroupIsLost) {
  ASSERT_TRUE(groups_.Join(Asked().Read()).ok());
  const Site site;
  epd_program_begun first = {sizeof first, 0, 0}, second = first;
  const auto call = [&](epd_program_begun* begun, std::uint32_t number, std::uint32_t occurrence) {
    epd_program_call one = site.At(0);
    one.site = number;
    one.occurrence = occurrence;
    one.begun = begun;
    ActiveCall active;
    const Status status = Begin(one, &active);
    if (!status.ok()) return status;
    last_ = active.number();
    active.End({});
    return status;
  };
  ASSERT_TRUE(call(&first, 0, 1).ok());
  ASSERT_TRUE(call(&second, 0, 1).ok());
  EXPECT_EQ(last_.execution, 1u);
  ASSERT_TRUE(call(&first, 1, 1).ok()) << "its gradient, after a newer execution";
  EXPECT_EQ(last_.execution, 0u);

  fake::CutSessions();
  EXPECT_EQ(call(&second, 1, 1).code, Code::kUnavailable);
  EXPECT_EQ(call(&first, 1, 2).code, Code::kAborted) << "it began before the loss";
  epd_program_begun third = {sizeof third, 0, 0};
  ASSERT_TRUE(call(&third, 0, 1).ok());
  EXPECT_EQ(last_.execution, 0u);
}

TEST_F(GroupsTest, ALostSessionIsReportedOnceAndTheNextExecutionJoinsAgain) {
  ASSERT_TRUE(groups_.Join(Asked().Read()).ok());
  const Site site;
  ASSERT_TRUE(Call(site, 1).ok());
  fake::CutSessions();
  const Status lost = Call(site, 2);
  EXPECT_EQ(lost.code, Code::kUnavailable);
  EXPECT_EQ(Call(site, 2, {}, 0, 1).code, Code::kAborted)
      << "another call of the execution that failed";
  ASSERT_TRUE(Call(site, 3).ok());
  EXPECT_EQ(last_.execution, 0u) << "a new session counts from 0";
  EXPECT_EQ(fake::num_sessions(), 2) << "domain 1 has not met the loss yet";
  EXPECT_EQ(Call(site, 3, {}, 1, 0).code, Code::kUnavailable);
  ASSERT_TRUE(Call(site, 4, {}, 1, 0).ok());
  EXPECT_EQ(fake::num_sessions(), 1);
}

TEST_F(GroupsTest, ALossThatACallInFlightReportedIsNotReportedAgain) {
  ASSERT_TRUE(groups_.Join(Asked().Read()).ok());
  const Site site;
  ActiveCall call;
  ASSERT_TRUE(Begin(site.At(1, 0, 0), &call).ok());
  fake::CutSessions();
  call.End({Code::kUnavailable, "the daemon is gone"});
  EXPECT_EQ(Call(site, 1).code, Code::kAborted);
  EXPECT_TRUE(Call(site, 2).ok());
}

TEST_F(GroupsTest, AGroupThatEndedWhileTheSessionLivesIsReportedOnceAndJoinedAgain) {
  ASSERT_TRUE(groups_.Join(Asked().Read()).ok());
  const Site site;
  ASSERT_TRUE(Call(site, 1).ok());
  fake::EndGroups(static_cast<int>(Code::kAborted));
  const Status lost = Call(site, 2);
  EXPECT_EQ(lost.code, Code::kAborted);
  EXPECT_THAT(lost.message, HasSubstr("the next one joins the group again"));
  ASSERT_TRUE(Call(site, 3).ok());
  EXPECT_EQ(last_.execution, 0u) << "a new join counts from 0";

  ActiveCall call;
  ASSERT_TRUE(Begin(site.At(4), &call).ok());
  fake::EndGroups(static_cast<int>(Code::kDeadlineExceeded));
  call.End({Code::kDeadlineExceeded, "the group did not form in time"});
  EXPECT_TRUE(Call(site, 5).ok()) << "the call in flight has reported it";
}

TEST_F(GroupsTest, AGroupThatAnOperatorClosedIsNotJoinedAgain) {
  ASSERT_TRUE(groups_.Join(Asked().Read()).ok());
  const Site site;
  fake::EndGroups(static_cast<int>(Code::kFailedPrecondition));
  ASSERT_TRUE(Call(site, 1, {Code::kFailedPrecondition, "closed"}).ok());
  ASSERT_TRUE(Call(site, 2).ok());
  EXPECT_EQ(last_.execution, 1u) << "the same join";
}

TEST_F(GroupsTest, AFailedOperationOfALivingGroupStaysJoined) {
  ASSERT_TRUE(groups_.Join(Asked().Read()).ok());
  const Site site;
  ASSERT_TRUE(Call(site, 1, {Code::kResourceExhausted, "overflow"}).ok());
  ASSERT_TRUE(Call(site, 2).ok());
  EXPECT_EQ(last_.execution, 1u);
}

TEST_F(GroupsTest, ADaemonThatIsNotBackYetFailsTheCallAndIsTriedAgain) {
  ASSERT_TRUE(groups_.Join(Asked().Read()).ok());
  const Site site;
  fake::CutSessions();
  EXPECT_EQ(Call(site, 1).code, Code::kUnavailable);
  fake::FailNextConnects(14, 1);
  EXPECT_EQ(Call(site, 2).code, Code::kUnavailable);
  EXPECT_EQ(Call(site, 2).code, Code::kAborted) << "the rest of that execution";
  EXPECT_TRUE(Call(site, 3).ok());
}

TEST_F(GroupsTest, ACallWaitsForADaemonThatIsNotBackYet) {
  Asked asked;
  asked.group.reconnect_timeout_ms = 60'000;
  ASSERT_TRUE(groups_.Join(asked.Read()).ok());
  const Site site;
  fake::CutSessions();
  EXPECT_EQ(Call(site, 1).code, Code::kUnavailable) << "it has died: what was under way is lost";
  fake::FailNextConnects(14, 3);
  EXPECT_TRUE(Call(site, 2).ok());
}

TEST_F(GroupsTest, ADaemonThatDoesNotComeBackInTimeFailsTheCall) {
  Asked asked;
  asked.group.reconnect_timeout_ms = 1;
  ASSERT_TRUE(groups_.Join(asked.Read()).ok());
  const Site site;
  fake::CutSessions();
  EXPECT_EQ(Call(site, 1).code, Code::kUnavailable);
  fake::FailNextConnects(14, 1000);
  const Status late = Call(site, 2);
  EXPECT_EQ(late.code, Code::kUnavailable);
  EXPECT_THAT(late.message, HasSubstr("group=job/default/0 epoch=1 rank=0 phase=begin: waited"));
  fake::FailNextConnects(7, 1);
  EXPECT_EQ(Call(site, 3).code, Code::kPermissionDenied) << "no waiting helps";
}

TEST_F(GroupsTest, AFailedBootstrapLeavesNothingBehind) {
  fake::FailNextJoin(4);
  EXPECT_EQ(groups_.Join(Asked().Read()).code, Code::kDeadlineExceeded);
  EXPECT_EQ(fake::num_groups(), 0);
  EXPECT_TRUE(groups_.Join(Asked().Read()).ok());
}

TEST_F(GroupsTest, FinalizeTwiceAndBootstrapAgainIsFine) {
  groups_.Finalize("default");
  ASSERT_TRUE(groups_.Join(Asked().Read()).ok());
  groups_.Finalize("default");
  groups_.Finalize("default");
  EXPECT_EQ(fake::num_sessions(), 0);
  ASSERT_TRUE(groups_.Join(Asked().Read()).ok());
  EXPECT_TRUE(Call(Site(), 1).ok());
}

TEST_F(GroupsTest, FinalizeWaitsForACallInFlight) {
  ASSERT_TRUE(groups_.Join(Asked().Read()).ok());
  const Site site;
  ActiveCall call;
  ASSERT_TRUE(Begin(site.At(1, 0, 0), &call).ok());
  std::thread finalize([&] { groups_.Finalize("default"); });
  call.End({});
  finalize.join();
  EXPECT_EQ(fake::num_groups(), 0);
}

TEST_F(GroupsTest, FinalizeLetsAProgramThatIsUnderWayMakeItsFurtherCalls) {
  ASSERT_TRUE(groups_.Join(Asked().Read()).ok());
  const Site site;
  auto call = std::make_unique<ActiveCall>();
  ASSERT_TRUE(Begin(site.At(1, 0, 0), call.get()).ok());
  std::thread finalize([&] { groups_.Finalize("default"); });
  for (std::uint64_t run = 2; run < 20; ++run) {
    auto next = std::make_unique<ActiveCall>();
    EXPECT_TRUE(Begin(site.At(run, 0, 1), next.get()).ok());
    call->End({});
    call = std::move(next);
    std::this_thread::yield();
  }
  call->End({});
  finalize.join();
  EXPECT_EQ(fake::num_groups(), 0);
  EXPECT_EQ(Call(site, 20).code, Code::kFailedPrecondition);
}

}  // namespace
}  // namespace epd::program
