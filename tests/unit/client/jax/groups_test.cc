// Goal: an alias means what the last bootstrap said; a lost session fails one execution and no
// more.
#include "client/jax/groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/unit/client/jax/fake_epd_client.h"

namespace epd::jax {
namespace {

using testing::HasSubstr;

constexpr int kUnavailable = 14, kInvalidArgument = 3, kFailedPrecondition = 9, kAborted = 10;

GroupConfig Config() {
  GroupConfig config;
  config.alias = "default";
  config.job = "job";
  config.num_domains = 2;
  config.ranks = 2;
  config.experts = 4;
  config.max_tokens = 16;
  config.recv_capacity = 64;
  config.hidden = 8;
  config.held = {{0, {{0, "cpu:0"}, {1, "cpu:1"}}}, {1, {{0, "cpu:2"}}}};
  return config;
}

CallSite Site(Operation operation = Operation::kDispatch) {
  EndCompile();
  CallConfig config;
  config.operation = operation;
  config.alias = "default";
  config.ranks = 2;
  config.experts = 4;
  config.max_tokens = 16;
  config.hidden = 8;
  config.capacity = 64;
  return *AddCallSite(config);
}

class GroupsTest : public testing::Test {
 protected:
  GroupsTest() { fake::Reset(); }
  ~GroupsTest() override {
    groups_.Finalize("default");
    EXPECT_EQ(fake::num_groups(), 0);
    EXPECT_EQ(fake::num_sessions(), 0);
  }

  // Begins and ends a call that reports `result`; returns the status of the begin.
  Status Call(const CallSite& site, std::int64_t run_id, const Status& result = {},
              std::int32_t domain = 0, std::int32_t rank = 0) {
    ActiveCall call;
    const Status status = groups_.Begin(site, run_id, domain, rank, &call);
    if (!status.ok()) return status;
    last_ = call.number();
    const Status refusal = call.refusal();
    call.End(site, run_id, refusal.ok() ? result : refusal);
    return refusal;
  }

  Groups groups_;
  CallNumber last_;
};

TEST_F(GroupsTest, CallBeforeBootstrapSaysWhatToDo) {
  const Status status = Call(Site(), 1);
  EXPECT_EQ(status.code, kFailedPrecondition);
  EXPECT_THAT(status.message, HasSubstr("ep_bootstrap"));
}

TEST_F(GroupsTest, AGroupPerDomainIsJoinedInOneSession) {
  ASSERT_TRUE(groups_.Bootstrap(Config()).ok());
  EXPECT_EQ(fake::num_groups(), 2);
  EXPECT_EQ(fake::num_sessions(), 1);
  EXPECT_TRUE(Call(Site(), 1).ok());
  EXPECT_TRUE(Call(Site(), 1, {}, 1, 0).ok());
  EXPECT_EQ(groups_.Bootstrap(Config()).code, kFailedPrecondition);
}

TEST_F(GroupsTest, WhatTheProgramIsGoesWithEachJoin) {
  GroupConfig config = Config();
  config.program = "decode";
  config.metadata = "stage=ffn v=7";
  ASSERT_TRUE(groups_.Bootstrap(config).ok());
  EXPECT_EQ(fake::last_join(), "decode|stage=ffn v=7");
}

TEST_F(GroupsTest, ARankOfAnotherProcessIsNamed) {
  ASSERT_TRUE(groups_.Bootstrap(Config()).ok());
  const Status status = Call(Site(), 1, {}, 1, 1);
  EXPECT_EQ(status.code, kInvalidArgument);
  EXPECT_THAT(status.message, HasSubstr("group=job/default/1 epoch=1 rank=1 phase=begin"));
  EXPECT_THAT(status.message, HasSubstr("domain 1, position 1"));
}

TEST_F(GroupsTest, AnExecutableTracedForOtherSizesNamesTheField) {
  GroupConfig config = Config();
  config.hidden = 16;
  ASSERT_TRUE(groups_.Bootstrap(config).ok());
  EXPECT_THAT(Call(Site(), 1).message, HasSubstr("hidden_dim=8"));
  EXPECT_EQ(last_.execution, 0u) << "the call is made, so that every rank is told";
  EXPECT_TRUE(Call(Site(Operation::kPrepare), 2).ok()) << "prepare knows no hidden size";
  groups_.Finalize("default");
  config = Config();
  config.recv_capacity = 63;
  ASSERT_TRUE(groups_.Bootstrap(config).ok());
  EXPECT_THAT(Call(Site(), 3).message, HasSubstr("recv_capacity_per_rank=64"));
}

TEST_F(GroupsTest, ACallThatCannotBeMadeIsRefusedUnderItsNumber) {
  GroupConfig config = Config();
  config.experts = 8;
  ASSERT_TRUE(groups_.Bootstrap(config).ok());
  ActiveCall call;
  const CallSite other_size = Site();
  ASSERT_TRUE(groups_.Begin(other_size, 1, 0, 0, &call).ok());
  EXPECT_EQ(call.refusal().code, kInvalidArgument);
  EXPECT_THAT(call.refusal().message, HasSubstr("num_experts=4"));
  call.End(other_size, 1, call.refusal());

  groups_.Finalize("default");
  ASSERT_TRUE(groups_.Bootstrap(Config()).ok());
  const CallSite site = Site();
  ActiveCall first, second;
  ASSERT_TRUE(groups_.Begin(site, 2, 0, 0, &first).ok());
  EXPECT_TRUE(first.refusal().ok());
  ASSERT_TRUE(groups_.Begin(site, 3, 0, 0, &second).ok());
  EXPECT_EQ(second.refusal().code, kFailedPrecondition);
  EXPECT_THAT(second.refusal().message, HasSubstr("two executions"));
  EXPECT_EQ(second.number().execution, first.number().execution + 1);
  second.End(site, 3, second.refusal());
  first.End(site, 2, {});
  EXPECT_TRUE(Call(site, 4).ok()) << "the next execution is none of theirs";
}

TEST_F(GroupsTest, AProgramOfAnotherTableOfOwnersIsRefused) {
  GroupConfig config = Config();
  config.expert_owner = {1, 0, 0, 1};
  config.owners = 77;
  ASSERT_TRUE(groups_.Bootstrap(config).ok());
  EXPECT_THAT(Call(Site(), 1).message, HasSubstr("expert_owner"));
}

TEST_F(GroupsTest, ACallAtARankOfAnotherProcessNamesThePlaceTheDevicesAndTheHolder) {
  GroupConfig config = Config();
  config.elsewhere = {{{1, 1}, "device id 7 (platform cpu) of process 3"}};
  config.devices = "process 0, device ids 0, 1, 2, platform cpu";
  ASSERT_TRUE(groups_.Bootstrap(config).ok());
  const Status refused = Call(Site(), 1, {}, 1, 1);
  EXPECT_EQ(refused.code, kInvalidArgument);
  EXPECT_THAT(refused.message, HasSubstr("device ids 0, 1, 2, platform cpu) runs as domain 1, "
                                         "position 1 along ep of the program's mesh, which device "
                                         "id 7 (platform cpu) of process 3 holds"));
}

TEST_F(GroupsTest, InAGroupJoinedByRankThePositionCountsTheRanksHeldHere) {
  GroupConfig config = Config();
  config.num_domains = 1;
  config.ranks = 4;
  config.by_rank = true;
  config.held = {{0, {{1, "cpu:0"}, {3, "cpu:1"}}}};
  ASSERT_TRUE(groups_.Bootstrap(config).ok());
  CallSite site = Site();
  site.config.ranks = 4;
  EXPECT_THAT(Call(site, 1).message, HasSubstr("joined_by_rank")) << "a program of mesh positions";
  site.config.by_rank = true;
  ActiveCall call;
  ASSERT_TRUE(groups_.Begin(site, 1, 0, 1, &call).ok());
  EXPECT_EQ(call.rank(), 3u);
  call.End(site, 1, {});
  EXPECT_EQ(Call(site, 1, {}, 0, 2).code, kInvalidArgument) << "only two ranks are held here";
}

TEST_F(GroupsTest, ALostSessionIsReportedOnceAndTheNextExecutionJoinsAgain) {
  ASSERT_TRUE(groups_.Bootstrap(Config()).ok());
  const CallSite site = Site();
  ASSERT_TRUE(Call(site, 1).ok());
  fake::CutSessions();
  const Status lost = Call(site, 2);
  EXPECT_EQ(lost.code, kUnavailable);
  EXPECT_EQ(Call(site, 2, {}, 0, 1).code, kAborted) << "another call of the execution that failed";
  ASSERT_TRUE(Call(site, 3).ok());
  EXPECT_EQ(last_.execution, 0u) << "a new session counts from 0";
  EXPECT_EQ(fake::num_sessions(), 2) << "domain 1 has not met the loss yet";
  EXPECT_EQ(Call(site, 3, {}, 1, 0).code, kUnavailable);
  ASSERT_TRUE(Call(site, 4, {}, 1, 0).ok());
  EXPECT_EQ(fake::num_sessions(), 1);
}

TEST_F(GroupsTest, ALossThatACallInFlightReportedIsNotReportedAgain) {
  ASSERT_TRUE(groups_.Bootstrap(Config()).ok());
  const CallSite site = Site();
  ActiveCall call;
  ASSERT_TRUE(groups_.Begin(site, 1, 0, 0, &call).ok());
  fake::CutSessions();
  call.End(site, 1, {kUnavailable, "the daemon is gone"});
  EXPECT_EQ(Call(site, 1).code, kAborted);
  EXPECT_TRUE(Call(site, 2).ok());
}

TEST_F(GroupsTest, AFailedOperationOfALivingGroupKeepsTheMembership) {
  ASSERT_TRUE(groups_.Bootstrap(Config()).ok());
  const CallSite site = Site();
  ASSERT_TRUE(Call(site, 1, {8, "overflow"}).ok());
  ASSERT_TRUE(Call(site, 2).ok());
  EXPECT_EQ(last_.execution, 1u);
}

TEST_F(GroupsTest, ADaemonThatIsNotBackYetFailsTheCallAndIsTriedAgain) {
  ASSERT_TRUE(groups_.Bootstrap(Config()).ok());
  const CallSite site = Site();
  fake::CutSessions();
  EXPECT_EQ(Call(site, 1).code, kUnavailable);
  fake::FailNextConnect(kUnavailable);
  EXPECT_EQ(Call(site, 2).code, kUnavailable);
  EXPECT_EQ(Call(site, 2).code, kAborted) << "the rest of that execution";
  EXPECT_TRUE(Call(site, 3).ok());
}

TEST_F(GroupsTest, AFailedBootstrapLeavesNothingBehind) {
  fake::FailNextJoin(4);
  EXPECT_EQ(groups_.Bootstrap(Config()).code, 4);
  EXPECT_EQ(fake::num_groups(), 0);
  EXPECT_TRUE(groups_.Bootstrap(Config()).ok());
}

TEST_F(GroupsTest, FinalizeTwiceAndBootstrapAgainIsFine) {
  groups_.Finalize("default");
  ASSERT_TRUE(groups_.Bootstrap(Config()).ok());
  groups_.Finalize("default");
  groups_.Finalize("default");
  EXPECT_EQ(fake::num_sessions(), 0);
  ASSERT_TRUE(groups_.Bootstrap(Config()).ok());
  EXPECT_TRUE(Call(Site(), 1).ok());
}

TEST_F(GroupsTest, FinalizeWaitsForACallInFlight) {
  ASSERT_TRUE(groups_.Bootstrap(Config()).ok());
  const CallSite site = Site();
  ActiveCall call;
  ASSERT_TRUE(groups_.Begin(site, 1, 0, 0, &call).ok());
  std::thread finalize([&] { groups_.Finalize("default"); });
  call.End(site, 1, {});
  finalize.join();
  EXPECT_EQ(fake::num_groups(), 0);
}

TEST_F(GroupsTest, FinalizeLetsAProgramThatIsUnderWayMakeItsFurtherCalls) {
  ASSERT_TRUE(groups_.Bootstrap(Config()).ok());
  const CallSite site = Site();
  auto call = std::make_unique<ActiveCall>();
  ASSERT_TRUE(groups_.Begin(site, 1, 0, 0, call.get()).ok());
  std::thread finalize([&] { groups_.Finalize("default"); });
  for (std::int64_t run = 2; run < 20; ++run) {
    auto next = std::make_unique<ActiveCall>();
    EXPECT_TRUE(groups_.Begin(site, run, 0, 1, next.get()).ok());
    call->End(site, run - 1, {});
    call = std::move(next);
    std::this_thread::yield();
  }
  call->End(site, 19, {});
  finalize.join();
  EXPECT_EQ(fake::num_groups(), 0);
  EXPECT_EQ(Call(site, 20).code, kFailedPrecondition);
}

}  // namespace
}  // namespace epd::jax
