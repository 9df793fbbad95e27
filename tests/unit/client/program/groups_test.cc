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

#include "client/program/program_call.h"
#include "tests/unit/client/program/fake_epd_client.h"

namespace epd::program {
namespace {

using testing::HasSubstr;

// What a process asks for.
struct Asked {
  Asked() {
    spec.struct_size = sizeof spec;
    spec.num_ranks = 2;
    spec.num_experts = 4;
    spec.max_tokens_per_rank = 16;
    spec.recv_capacity_per_rank = 64;
    spec.hidden = 8;
    group.struct_size = sizeof group;
    group.alias = "default";
    group.job = "job";
    group.reconnect_timeout_ms = -1;  // Losses are seen at once.
    Hold({{0, 0, "cpu:0"}, {0, 1, "cpu:1"}, {1, 0, "cpu:2"}});
  }
  struct Rank {
    std::uint32_t domain, position;
    const char* device;
  };
  static std::vector<epd_program_rank> RanksOf(const std::vector<Rank>& ranks) {
    std::vector<epd_program_rank> all;
    for (const auto& [domain, position, device] : ranks) {
      all.push_back({sizeof(epd_program_rank), domain, position, device});
    }
    return all;
  }
  void Hold(const std::vector<Rank>& ranks) {
    held = RanksOf(ranks);
    group.held = held.data();
    group.num_held = held.size();
  }
  std::shared_ptr<const GroupConfig> Read() {
    group.spec = &spec;
    std::shared_ptr<const GroupConfig> config;
    EXPECT_TRUE(GroupConfig::Read(&group, &config).ok());
    return config;
  }

  epd_group_spec spec = {};
  epd_program_group group = {};
  std::vector<epd_program_rank> held;
};

// A call of a program of its own, which was traced for the group above.
struct Site {
  explicit Site(std::int64_t hidden = 8) {
    static std::uint64_t executables = 0;
    sizes.struct_size = sizeof sizes;
    sizes.ranks = 2;
    sizes.experts = 4;
    sizes.max_tokens = 16;
    sizes.hidden = hidden;
    sizes.recv_capacity = 64;
    executable = ++executables;
  }
  epd_program_call At(std::uint64_t run_id, std::int32_t domain = 0, std::int32_t rank = 0) const {
    epd_program_call call = {};
    call.struct_size = sizeof call;
    call.alias = "default";
    call.domain = domain;
    call.position = rank;
    call.executable = executable;
    call.execution = run_id;
    call.traced = &sizes;
    return call;
  }
  epd_program_sizes sizes = {};
  std::uint64_t executable;
};

class GroupsTest : public testing::Test {
 protected:
  GroupsTest() { fake::Reset(); }
  ~GroupsTest() override {
    groups_.Finalize("default");
    EXPECT_EQ(fake::num_groups(), 0);
    EXPECT_EQ(fake::num_sessions(), 0);
  }

  // Begins and ends a call that reports `result`; returns the status of the begin.
  Status Call(const Site& site, std::uint64_t run_id, const Status& result = {},
              std::int32_t domain = 0, std::int32_t rank = 0) {
    ActiveCall call;
    const Status status = Begin(site.At(run_id, domain, rank), &call);
    if (!status.ok()) return status;
    last_ = call.number();
    const Status refusal = call.refusal();
    call.End(refusal.ok() ? result : refusal);
    return refusal;
  }

  Status Begin(const epd_program_call& call, ActiveCall* active) {
    std::optional<ActiveCall> begun;
    const Status status = groups_.Begin(call, /*may_wait=*/true, &begun);
    EXPECT_EQ(status.ok(), begun.has_value());
    if (begun) *active = *std::move(begun);
    return status;
  }

  Groups groups_;
  CallNumber last_;
};

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

// What an operation of ranks would do: fail while the daemon stops, then succeed.
class StopInOrderTest : public GroupsTest {
 protected:
  StopInOrderTest() { asked_.group.reconnect_timeout_ms = 60'000; }

  // Makes a call of several attempts; the status of the last, and the number of each.
  Status Run(const epd_program_call& call, const std::vector<int>& stopping) {
    numbers_.clear();
    const auto exchange = [&](const ActiveCall& active, std::int64_t, epd_pending**,
                              epd_error* error) {
      numbers_.push_back(active.number());
      if (numbers_.size() > stopping.size()) return 0;
      fake::StopInOrder(stopping[numbers_.size() - 1]);
      std::snprintf(error->message, sizeof error->message, "refused");
      return static_cast<int>(Code::kFailedPrecondition);
    };
    return ProgramCall(groups_, call, exchange).Finish();
  }

  epd_plans Plans() {
    ActiveCall call;
    epd_program_call named = site_.At(0);
    named.name = "plans";  // So it takes no number.
    EXPECT_TRUE(Begin(named, &call).ok());
    epd_group_info info = {};
    info.struct_size = sizeof info;
    epd_group_get_info(call.group(), &info);
    call.End({});
    return info.plans;
  }

  Asked asked_;
  Site site_;
  std::vector<CallNumber> numbers_;
};

TEST_F(StopInOrderTest, ACallInFlightIsRepeatedInTheNextSessionAsTheSameUseOfItsSite) {
  ASSERT_TRUE(groups_.Join(asked_.Read()).ok());
  const Site site;
  ASSERT_TRUE(Call(site, 1).ok());
  ASSERT_TRUE(Call(site, 2).ok());
  fake::FailNextConnects(14, 2);
  const epd_plans before = Plans();
  ASSERT_TRUE(Run(site.At(2), {EPD_GROUP_STOPPED}).ok()) << "its site's second use in execution 2";
  EXPECT_EQ(Plans().group_id, before.group_id) << "plans that it has prepared are still good";
  ASSERT_EQ(numbers_.size(), 2u);
  EXPECT_EQ(numbers_[0].execution, 1u);
  EXPECT_EQ(numbers_[0].occurrence, 1u);
  EXPECT_EQ(numbers_[1].execution, 0u) << "the first of the new session";
  EXPECT_EQ(numbers_[1].occurrence, 1u);
  ASSERT_TRUE(Call(site, 2).ok());
  EXPECT_EQ(last_.execution, 0u) << "the execution goes on";
  EXPECT_EQ(last_.occurrence, 2u);
  ASSERT_TRUE(Call(site, 3).ok());
  EXPECT_EQ(last_.execution, 1u);
}

// Who may not wait leaves to the thread that finishes the call what takes time: a join, a failure's cause.
TEST_F(StopInOrderTest, ATriedCallWaitsForNothingAndIsFinishedAsAnyOther) {
  ASSERT_TRUE(groups_.Join(asked_.Read()).ok());
  const Site site;
  std::vector<std::string> made;
  std::vector<int> codes = {EPD_PENDING, 0};
  const auto exchange = [&](const ActiveCall&, std::int64_t wait_ns, epd_pending**, epd_error*) {
    made.push_back(wait_ns < 0 ? "finish" : "try");
    return codes[made.size() - 1];
  };
  ProgramCall pending(groups_, site.At(1), exchange);
  EXPECT_FALSE(pending.Try(1000));
  EXPECT_TRUE(pending.Finish().ok());
  EXPECT_THAT(made, testing::ElementsAre("try", "finish"));

  made.clear();
  codes = {0};
  ProgramCall at_once(groups_, site.At(1), exchange);
  EXPECT_TRUE(at_once.Try(1000));
  EXPECT_TRUE(at_once.status().ok());

  made.clear();
  codes = {static_cast<int>(Code::kInvalidArgument)};
  ProgramCall fails(groups_, site.At(2), exchange);
  EXPECT_FALSE(fails.Try(1000)) << "its end waits to hear why";
  EXPECT_EQ(fails.Finish().code, Code::kInvalidArgument);
  EXPECT_THAT(made, testing::ElementsAre("try")) << "and it is not made again";

  fake::StopInOrder(EPD_GROUP_STOPPED);
  fake::CutSessions();
  made.clear();
  codes = {0};
  ProgramCall joins(groups_, site.At(3), exchange);
  const int before = fake::num_sessions();
  joins.Try(1000);
  EXPECT_TRUE(joins.Finish().ok());
  EXPECT_GE(fake::num_sessions(), before);
}

TEST_F(GroupsTest, NothingIsJoinedForACallThatMayNotWait) {
  const Site site;
  std::optional<ActiveCall> begun;
  EXPECT_TRUE(groups_.Begin(site.At(1), /*may_wait=*/false, &begun).ok());
  EXPECT_FALSE(begun) << "what the alias means may take time to find out";
  ASSERT_TRUE(groups_.Join(Asked().Read()).ok());
  fake::CutSessions();
  EXPECT_EQ(Call(site, 1).code, Code::kUnavailable) << "the loss is told";
  EXPECT_TRUE(groups_.Begin(site.At(2), /*may_wait=*/false, &begun).ok());
  EXPECT_FALSE(begun);
  EXPECT_TRUE(Call(site, 2).ok()) << "who may wait joins again";
  EXPECT_TRUE(groups_.Begin(site.At(3), /*may_wait=*/false, &begun).ok());
  ASSERT_TRUE(begun);
  begun->End({});
}

TEST_F(StopInOrderTest, ACallThatBeginsAfterTheStopNoticesNothing) {
  ASSERT_TRUE(groups_.Join(asked_.Read()).ok());
  const Site site;
  ASSERT_TRUE(Call(site, 1).ok());
  fake::StopInOrder(EPD_GROUP_STOPPED);
  fake::CutSessions();
  ASSERT_TRUE(Call(site, 1).ok());
  EXPECT_EQ(last_.execution, 0u);
  EXPECT_EQ(last_.occurrence, 1u);
  EXPECT_TRUE(groups_.Wait("default").ok());
}

TEST_F(StopInOrderTest, AStopThatEndsInADeathIsAnError) {
  ASSERT_TRUE(groups_.Join(asked_.Read()).ok());
  const Site site;
  std::thread death([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    fake::StopInOrder(EPD_GROUP_STAYS);
    fake::CutSessions();
  });
  EXPECT_EQ(Run(site.At(1), {EPD_GROUP_STOPS}).code, Code::kFailedPrecondition);
  death.join();
  EXPECT_EQ(numbers_.size(), 1u);
}

TEST_F(StopInOrderTest, WithoutPatienceItIsALossLikeAnyOther) {
  asked_.group.reconnect_timeout_ms = -1;
  ASSERT_TRUE(groups_.Join(asked_.Read()).ok());
  const Site site;
  EXPECT_EQ(Run(site.At(1), {EPD_GROUP_STOPPED}).code, Code::kFailedPrecondition);
  EXPECT_EQ(Call(site, 1).code, Code::kAborted);
  EXPECT_TRUE(Call(site, 2).ok());
}

TEST_F(StopInOrderTest, FinalizeEndsTheWaitForADaemon) {
  ASSERT_TRUE(groups_.Join(asked_.Read()).ok());
  fake::StopInOrder(EPD_GROUP_STOPPED);
  fake::CutSessions();
  fake::FailNextConnects(14, 1'000'000);
  const Site site;
  std::thread finalize([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    groups_.Finalize("default");
  });
  EXPECT_EQ(Call(site, 1).code, Code::kUnavailable);
  finalize.join();
  fake::FailNextConnects(0, 0);
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
