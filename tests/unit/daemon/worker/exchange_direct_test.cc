// Goal: what ranks do without the worker has one outcome with what they do through it: before it says a failure it ends
// the generation, calls that all have published are good, staging outlives who still reads, and figures count both.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/daemon/worker/exchange_harness.h"

namespace epd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Code = absl::StatusCode;

class ExchangeDirect : public ::testing::Test {
 protected:
  ExchangeDirect() { h_.StartTenant(h_.Spec(2)); }
  // One operation through the worker; the answer of rank 0's announce.
  AnswerSubmission RunOne(uint64_t execution) {
    const auto submissions = h_.AnnounceAll({h_.Request(0, execution), h_.Request(1, execution)});
    h_.Finish(h_.operation(submissions[0]));
    return h_.answers.at(submissions[0]);
  }
  DirectOutcome Outcome(uint32_t rank, uint64_t execution) const {
    const shm::SlotRequest request = h_.Dispatch(rank, execution);
    DirectOutcome outcome;
    outcome.group = kGroup;
    outcome.formation = Formation(1);
    outcome.rank = Rank(rank);
    std::copy(std::begin(request.program), std::end(request.program),
              outcome.key.execution.program.begin());
    outcome.key.execution.number = execution;
    outcome.raw_execution = execution;
    outcome.name = "name=x";
    outcome.said = CopyAnnouncement(request);
    outcome.ended = true;
    outcome.published_at = outcome.ended_at = h_.now;
    outcome.last_rank = 1;
    outcome.waited = absl::Microseconds(rank == 0 ? 5 : 0);
    return outcome;
  }

  ExchangeHarness h_;
};

TEST_F(ExchangeDirect, AGoodAnswerTellsTheExecutionsNumber) {
  const AnswerSubmission first = RunOne(0);
  EXPECT_EQ(first.direct_execution, 0u);
  EXPECT_TRUE(static_cast<bool>(first.direct_set));
}

TEST_F(ExchangeDirect, AnOwnErrorEndsTheGenerationBeforeAnybodyIsToldOfIt) {
  RunOne(0);
  h_.Take(h_.Dispatch(0, 1));
  ASSERT_THAT(h_.direct_ends, IsEmpty());
  shm::SlotRequest bad = h_.Dispatch(1, 1);
  bad.error_code = 3;
  h_.Take(bad);
  ASSERT_GE(h_.direct_ends.size(), 3u);
  EXPECT_TRUE(static_cast<bool>(h_.direct_ends[0]));
}

TEST_F(ExchangeDirect, ADeadSessionEndsTheGenerationBeforeItsPeersAreTold) {
  RunOne(0);
  h_.Take(h_.Dispatch(0, 1));
  h_.SessionDead(h_.SessionOf(1), absl::UnavailableError("gone"));
  ASSERT_GE(h_.direct_ends.size(), 2u);
  EXPECT_TRUE(static_cast<bool>(h_.direct_ends[0]));
}

TEST_F(ExchangeDirect, WhatAllHavePublishedIsGoodForWhoeverWaitsAndLeavesNothingOpen) {
  RunOne(0);
  const Submission waits = h_.Take(h_.Dispatch(0, 1));
  const Submission last = h_.TakeMet(h_.Dispatch(1, 1));
  for (const Submission& submission : {waits, last}) {
    EXPECT_EQ(h_.code(submission), Code::kOk);
    EXPECT_TRUE(h_.answers.at(submission).met);
  }
  EXPECT_EQ(h_.exchange.num_open_operations(), 0u);
  EXPECT_THAT(h_.records, IsEmpty());
}

TEST_F(ExchangeDirect, StagingStaysUntilNobodyReadsWithoutTheWorker) {
  RunOne(0);
  h_.direct_busy = true;
  h_.EndTenant(absl::AbortedError("over"));
  EXPECT_THAT(h_.awaited, SizeIs(1));
  EXPECT_THAT(h_.arenas, SizeIs(1));
  h_.exchange.DirectIdle(kGroup, Formation(1), h_.now);
  h_.Perform();
  EXPECT_THAT(h_.arenas, IsEmpty());
}

TEST_F(ExchangeDirect, ADrainIsReportedOnceNobodyReadsWithoutTheWorker) {
  RunOne(0);
  h_.direct_busy = true;
  h_.exchange.DrainTenant(kGroup, Formation(1), h_.now);
  h_.Perform();
  EXPECT_THAT(h_.drained, IsEmpty());
  EXPECT_THAT(h_.direct_ends, SizeIs(1));
  h_.exchange.DirectIdle(kGroup, Formation(1), h_.now);
  h_.Perform();
  EXPECT_THAT(h_.drained, ElementsAre(Formation(1)));
}

TEST_F(ExchangeDirect, RecordsOfAllRanksCountOneOperation) {
  RunOne(0);
  const ExchangeSnapshot before = h_.exchange.Snapshot(h_.now);
  for (const uint32_t rank : {0u, 1u}) h_.exchange.NoteDirect(Outcome(rank, 1), h_.now);
  const ExchangeSnapshot after = h_.exchange.Snapshot(h_.now);
  ASSERT_THAT(after.tenants, SizeIs(1));
  EXPECT_EQ(after.tenants[0].num_good, before.tenants[0].num_good + 1);
  EXPECT_EQ(after.tenants[0].bytes_moved, before.tenants[0].bytes_moved + 2 * 5000);
  EXPECT_EQ(after.tenants[0].waited_ns[1] - before.tenants[0].waited_ns[1], 5000);
  const WaitCounts& waits = after.tenants[0].waits[1];
  EXPECT_EQ(waits.counts[0], before.tenants[0].waits[1].counts[0] + 1) << "up to 100 us";
  EXPECT_THAT(h_.exchange.Past(kGroup, 10, 100, h_.now), SizeIs(4)) << "two of each rank";
}

TEST_F(ExchangeDirect, ATraceHasTheRanksParts) {
  h_.exchange.traces().KeepUntil(h_.now + absl::Minutes(1));
  for (const uint32_t rank : {0u, 1u}) {
    DirectOutcome outcome = Outcome(rank, 1);
    outcome.ended_at += absl::Microseconds(9);
    h_.exchange.NoteDirect(outcome, h_.now);
  }
  const OperationTraces::Page page = h_.exchange.traces().Read({}, 0, 100);
  ASSERT_THAT(page.ranks, SizeIs(2));
  EXPECT_EQ(TraceIdOf(page.ranks[0]), TraceIdOf(page.ranks[1]));
  const auto after = [&](TracePoint point) {
    return page.ranks[0].at[static_cast<size_t>(point)] -
           page.ranks[0].at[static_cast<size_t>(TracePoint::kAnnounced)];
  };
  EXPECT_EQ(after(TracePoint::kDecided), absl::Microseconds(5));
  EXPECT_EQ(after(TracePoint::kEnded), absl::Microseconds(9));
}

}  // namespace
}  // namespace epd
