// Goal: nobody waits without an end, and whoever is late is named: first in the log, then in the
// error that every rank gets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/daemon/worker/exchange_harness.h"

namespace epd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using Code = absl::StatusCode;

constexpr absl::Duration kTick = absl::Nanoseconds(1);

class Deadline : public ::testing::Test {
 protected:
  void SetUp() override { h_.StartTenant(h_.Spec(3)); }
  OperationId Admitted(ExchangeHarness& h) {
    const auto submissions = h.AnnounceAll({h.Request(0), h.Request(1), h.Request(2)});
    return h.operation(submissions[0]);
  }
  ExchangeHarness h_;
};

TEST_F(Deadline, AbsentRankIsNamedInTheLogAfterTwentySecondsOnce) {
  h_.Take(h_.Request(0));
  h_.Advance(absl::Seconds(20) - kTick);
  EXPECT_TRUE(h_.logs.empty());
  h_.Advance(kTick);
  ASSERT_THAT(h_.logs, SizeIs(1));
  EXPECT_THAT(h_.logs[0], AllOf(HasSubstr("group=g epoch=3"),
                                HasSubstr("rank=1 host=host1 pid=101 phase=absent"),
                                HasSubstr("rank=2 host=host2 pid=102 phase=absent"),
                                Not(HasSubstr("rank=0")), Not(HasSubstr("crossed order"))));
  h_.Advance(absl::Minutes(5));
  EXPECT_THAT(h_.logs, SizeIs(1));
}

// Each comparison of a tenant's operations costs all of them: a client that has many open, and asks to be warned at once, would
// keep the worker from everything else.
TEST_F(Deadline, ManyOperationsThatWaitAreComparedNowAndThenAndSomeOfThemNamed) {
  constexpr uint64_t kWaiting = 200;
  for (uint64_t execution = 0; execution < kWaiting; ++execution) {
    h_.Take(h_.Request(0, execution));
    h_.Advance(absl::Microseconds(10));
  }
  h_.Advance(absl::Seconds(20));
  EXPECT_THAT(h_.logs, SizeIs(8));
  h_.Advance(absl::Seconds(60));
  EXPECT_THAT(h_.logs, SizeIs(8));
  // One that comes later is named, too.
  h_.Take(h_.Request(1, kWaiting + 1));
  h_.Advance(absl::Seconds(20));
  EXPECT_THAT(h_.logs, SizeIs(9));
}

TEST_F(Deadline, AbsentRankFailsTheOperationAfterTenMinutesAndTheLateComerAtOnce) {
  const Submission waits = h_.Take(h_.Request(0));
  const Submission also = h_.Take(h_.Request(1));
  h_.Advance(absl::Seconds(20));
  h_.Advance(absl::Minutes(10) - absl::Seconds(20) - kTick);
  EXPECT_FALSE(h_.answered(waits));
  h_.Advance(kTick);
  for (const Submission& submission : {waits, also}) {
    EXPECT_EQ(h_.code(submission), Code::kDeadlineExceeded);
    EXPECT_THAT(h_.text(submission), HasSubstr("rank=2 host=host2 pid=102 phase=absent"));
  }
  const Submission late = h_.Take(h_.Request(2));
  EXPECT_EQ(h_.code(late), Code::kDeadlineExceeded);
  // All ranks meet again in the first execution above.
  const auto next = h_.AnnounceAll({h_.Request(0, 1), h_.Request(1, 1), h_.Request(2, 1)});
  EXPECT_EQ(h_.code(next[0]), Code::kOk);
}

TEST_F(Deadline, CrossedOrderIsNamed) {
  shm::SlotRequest other = h_.Request(1);
  other.ordinal = 6;
  h_.Take(h_.Request(0));
  h_.Take(other);
  h_.Advance(absl::Seconds(20));
  ASSERT_THAT(h_.logs, SizeIs(2));
  EXPECT_THAT(h_.logs[0],
              AllOf(HasSubstr("crossed order"), HasSubstr("ordinal=0"), HasSubstr("ordinal=6")));
}

TEST_F(Deadline, UnpublishedOperationFailsThirtySecondsAfterAdmission) {
  h_.Take(h_.Request(0));
  h_.Advance(absl::Seconds(15));
  const auto rest = h_.AnnounceAll({h_.Request(1), h_.Request(2)});
  const OperationId op = h_.operation(rest[0]);
  const Submission waits = h_.Step(0, op, shm::Step::kPublish);
  h_.Advance(absl::Seconds(30) - kTick);
  EXPECT_FALSE(h_.answered(waits));
  h_.Advance(kTick);
  EXPECT_EQ(h_.code(waits), Code::kDeadlineExceeded);
  EXPECT_THAT(h_.text(waits),
              AllOf(HasSubstr("rank=1 host=host1 pid=101 phase=publish"), HasSubstr("rank=2"),
                    Not(HasSubstr("rank=0 host")), HasSubstr("[EPD-1203]")));
  EXPECT_EQ(h_.code(h_.Step(1, op, shm::Step::kPublish)), Code::kDeadlineExceeded);
}

TEST_F(Deadline, LongReaderLosesItsSessionThirtySecondsAfterTheOutcome) {
  const OperationId op = Admitted(h_);
  for (uint32_t r = 0; r < 3; ++r) h_.Step(r, op, shm::Step::kPublish);
  for (uint32_t r = 0; r < 2; ++r) h_.Step(r, op, shm::Step::kPulled);
  h_.Advance(absl::Seconds(30) - kTick);
  EXPECT_TRUE(h_.evicted.empty());
  h_.Advance(kTick);
  ASSERT_THAT(h_.evicted, SizeIs(1));
  EXPECT_EQ(h_.evicted[0].session, h_.SessionOf(2));
  EXPECT_THAT(std::string(h_.evicted[0].cause.message()), HasSubstr("rank=2 host=host2 pid=102"));
  h_.Advance(absl::Minutes(1));
  EXPECT_THAT(h_.evicted, SizeIs(1)) << "asked again";
  h_.SessionDead(h_.SessionOf(2), h_.evicted[0].cause, true);
  EXPECT_EQ(h_.exchange.num_open_operations(), 0u);
}

TEST_F(Deadline, WritersOfAFailedOperationHoldItForThirtySeconds) {
  Admitted(h_);
  h_.EndTenant(absl::AbortedError("re-formed"));
  h_.Advance(absl::Seconds(30));
  EXPECT_THAT(h_.evicted, SizeIs(3));
}

// A group's own deadlines are the client's to choose.
TEST(DeadlineStaging, NodeCutsHowLongAnAdmittedOperationMayHoldStaging) {
  ExchangeHarness h({.staging_bytes = 2 * 8192, .limits = {.undecided = absl::Seconds(5)}});
  h.StartTenant(h.Spec(2));  // Whose deadline is 30 s.
  const auto first = h.AnnounceAll({h.Dispatch(0, 0), h.Dispatch(1, 0)});
  const Submission waits = h.Step(0, h.operation(first[0]), shm::Step::kPublish);
  h.Advance(absl::Seconds(5) - kTick);
  EXPECT_FALSE(h.answered(waits));
  h.Advance(kTick);
  EXPECT_EQ(h.code(waits), Code::kDeadlineExceeded);
  EXPECT_THAT(h.text(waits), HasSubstr("max_undecided"));
}

TEST(DeadlineStaging, WhoWaitsForAQuotaToTheEndIsToldWhichAndWhoHoldsIt) {
  ExchangeHarness h({.staging_bytes = 64 * 8192, .limits = {.staging_per_tenant = 2 * 8192}});
  h.StartTenant(h.Spec(2));
  const auto first = h.AnnounceAll({h.Dispatch(0, 0), h.Dispatch(1, 0)});
  h.Advance(absl::Seconds(1));
  const auto second = h.AnnounceAll({h.Dispatch(0, 1), h.Dispatch(1, 1)});
  for (uint32_t r = 0; r < 2; ++r) h.Step(r, h.operation(first[0]), shm::Step::kPublish);
  h.Advance(absl::Seconds(30));
  EXPECT_EQ(h.code(second[0]), Code::kResourceExhausted);
  EXPECT_THAT(h.text(second[0]), AllOf(HasSubstr("holds 16384 bytes of staging"),
                                       HasSubstr("max_staging_per_tenant")));
}

TEST(DeadlineStaging, QueuedOperationsAreAdmittedInOrderAsRegionsComeBack) {
  ExchangeHarness h({.staging_bytes = 2 * 8192});
  h.StartTenant(h.Spec(2));
  std::vector<std::vector<Submission>> submissions;
  for (uint64_t i = 0; i < 3; ++i) {
    shm::SlotRequest small[2] = {h.Dispatch(0, i), h.Dispatch(1, i)};
    if (i == 2) small[0].stage_bytes = small[1].stage_bytes = 100;  // Would fit beside the first.
    submissions.push_back(h.AnnounceAll({small[0], small[1]}));
  }
  EXPECT_EQ(h.code(submissions[0][0]), Code::kOk);
  EXPECT_FALSE(h.answered(submissions[1][0]));
  EXPECT_FALSE(h.answered(submissions[2][0])) << "a later operation overtook";
  const OperationId op = h.operation(submissions[0][0]);
  h.Finish(op);
  EXPECT_EQ(h.code(submissions[1][0]), Code::kOk);
  EXPECT_FALSE(h.answered(submissions[2][0]));
}

TEST(DeadlineStaging, NoStagingInTimeIsResourceExhaustedAndEndsNothingElse) {
  ExchangeHarness h({.staging_bytes = 2 * 8192});
  h.StartTenant(h.Spec(2));
  const auto first = h.AnnounceAll({h.Dispatch(0, 0), h.Dispatch(1, 0)});
  h.Advance(absl::Seconds(1));
  const auto second = h.AnnounceAll({h.Dispatch(0, 1), h.Dispatch(1, 1)});
  for (uint32_t r = 0; r < 2; ++r) h.Step(r, h.operation(first[0]), shm::Step::kPublish);
  h.Advance(absl::Seconds(30) - kTick);
  EXPECT_FALSE(h.answered(second[0]));
  h.Advance(kTick);
  EXPECT_EQ(h.code(second[0]), Code::kResourceExhausted);
  EXPECT_THAT(h.text(second[1]), HasSubstr("larger staging pool"));
  EXPECT_EQ(h.code(h.Step(0, h.operation(first[0]), shm::Step::kPulled)), Code::kUnknown);
}

TEST(DeadlineStaging, WhatCanNeverFitFailsAtOnce) {
  ExchangeHarness h({.staging_bytes = 2 * 8192});
  h.StartTenant(h.Spec(2));
  shm::SlotRequest large = h.Dispatch(0);
  large.stage_bytes = 9000;
  const auto submissions = h.AnnounceAll({large, h.Dispatch(1)});
  for (const Submission& submission : submissions) {
    EXPECT_EQ(h.code(submission), Code::kResourceExhausted);
    EXPECT_THAT(h.text(submission), AllOf(HasSubstr("9024"), HasSubstr("16384")));
  }
}

TEST(DeadlineStaging, AnotherSetsIdlePagesAreTrimmed) {
  ExchangeHarness h({.staging_bytes = 2 * 8192});
  h.StartTenant(h.Spec(2), GroupId(7));
  h.StartTenant(h.Spec(1), GroupId(8));
  const OperationId op = h.operation(h.AnnounceAll({h.Dispatch(0), h.Dispatch(1)})[0]);
  h.Finish(op);
  shm::SlotRequest alone = h.Dispatch(0);
  alone.group_id = 8;
  EXPECT_EQ(h.code(h.Take(alone)), Code::kOk);
  EXPECT_THAT(h.trims, SizeIs(1));
}

// A larger pool would help nobody: no process, no memory, or a process that holds a file's lock is what it waits for.
TEST(DeadlineStaging, WhoWaitsForPagesThatAreNotMadeIsToldWhy) {
  ExchangeHarness h({.staging_bytes = 2 * 8192});
  h.StartTenant(h.Spec(2));
  const auto first = h.AnnounceAll({h.Dispatch(0, 0), h.Dispatch(1, 0)});
  const auto second = h.AnnounceAll({h.Dispatch(0, 1), h.Dispatch(1, 1)});
  for (uint32_t r = 0; r < 2; ++r) h.Step(r, h.operation(first[0]), shm::Step::kPublish);
  h.exchange.SetPageProblems({{0, "no process: ulimit -u 40"}, {1, "pages of another user"}});
  h.Advance(absl::Seconds(30));
  EXPECT_EQ(h.code(second[0]), Code::kResourceExhausted);
  EXPECT_THAT(h.text(second[1]),
              AllOf(HasSubstr("no process: ulimit -u 40 [EPD-1103]"), Not(HasSubstr("larger"))));
}

}  // namespace
}  // namespace epd
