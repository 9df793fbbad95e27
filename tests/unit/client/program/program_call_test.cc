// Goal: a call is made once, whoever may wait for it; where a node's daemon stops in order it is repeated, and its program
// notices nothing.
#include "client/program/program_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/client/program/fake_epd_client.h"
#include "tests/unit/client/program/groups_fixture.h"

namespace epd::program {
namespace {

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
  EXPECT_FALSE(joins.Try(1000)) << "it has to join first, which ranks may do in another order";
  EXPECT_THAT(made, testing::IsEmpty());
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

}  // namespace
}  // namespace epd::program
