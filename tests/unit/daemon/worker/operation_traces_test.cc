// Goal: while somebody wants it, what each rank did when is kept for every operation, or, above a rate, for some, each of them whole, with an
// identity that all nodes share; nothing is kept while nobody does, nor ever more than the rings hold.
#include "daemon/worker/engine/operation_traces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "daemon/worker/engine/tenant.h"
#include "tests/unit/daemon/worker/exchange_harness.h"

namespace epd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr size_t kAll = 1000;

class Traces : public ::testing::Test {
 protected:
  void SetUp() override { h.StartTenant(ExchangeHarness::Spec(2)); }

  void RunOnce(uint64_t execution) {
    const std::vector<Submission> submissions =
        h.AnnounceAll({h.Request(0, execution), h.Request(1, execution)});
    h.Finish(h.operation(submissions[0]));
  }
  OperationTraces& traces() { return h.exchange.traces(); }
  void KeepFor(absl::Duration time) { traces().KeepUntil(h.now + time); }
  // How long after its announce the rank came there; below zero: it did not.
  static absl::Duration After(const RankTrace& trace, TracePoint point) {
    return trace.at[static_cast<size_t>(point)] -
           trace.at[static_cast<size_t>(TracePoint::kAnnounced)];
  }

  ExchangeHarness h;
};

TEST_F(Traces, NothingIsKeptUntilSomebodyAsksAndAfterTheTimeIsUp) {
  RunOnce(0);
  EXPECT_FALSE(traces().on());
  EXPECT_THAT(traces().Read({}, 0, kAll).ranks, IsEmpty());
  KeepFor(absl::Seconds(10));
  RunOnce(1);
  EXPECT_THAT(traces().Read({}, 0, kAll).ranks, SizeIs(2));
  h.Advance(absl::Seconds(10));
  RunOnce(2);
  EXPECT_FALSE(traces().on());
  EXPECT_THAT(traces().Read({}, 0, kAll).ranks, IsEmpty()) << "its memory is given back";
}

TEST_F(Traces, WhatIsOpenWhenSomebodyAsksIsThereSinceItsAnnounce) {
  const absl::Time announced = h.now;
  const Submission first = h.Take(h.Request(0));
  h.Advance(absl::Seconds(30));
  h.exchange.KeepTraces(h.now + absl::Seconds(10));
  h.exchange.KeepTraces(h.now + absl::Seconds(10));
  const std::vector<RankTrace> open = traces().ReadOpen({}, kAll);
  ASSERT_THAT(open, SizeIs(1)) << "rank 1 has not come";
  EXPECT_EQ(open[0].rank, Rank(0));
  EXPECT_EQ(open[0].at[static_cast<size_t>(TracePoint::kAnnounced)], announced);
  h.Take(h.Request(1));
  h.Finish(h.operation(first));
  EXPECT_THAT(traces().Read({}, 0, kAll).ranks, SizeIs(2));
  EXPECT_THAT(traces().ReadOpen({}, kAll), IsEmpty());
}

TEST_F(Traces, EveryStepOfEachRankHasItsTime) {
  KeepFor(absl::Minutes(1));
  const Submission first = h.Take(h.Request(0));
  h.Advance(absl::Milliseconds(30));
  h.Take(h.Request(1));
  const OperationId operation = h.operation(first);
  h.Advance(absl::Milliseconds(5));
  h.Step(0, operation, shm::Step::kPublish);
  h.Advance(absl::Milliseconds(2));
  h.Step(1, operation, shm::Step::kPublish);
  h.Advance(absl::Milliseconds(7));
  h.Step(1, operation, shm::Step::kPulled);
  h.Advance(absl::Milliseconds(1));
  h.Step(0, operation, shm::Step::kPulled);

  const std::vector<RankTrace> ranks = traces().Read({}, 0, kAll).ranks;
  ASSERT_THAT(ranks, SizeIs(2));
  const RankTrace& zero = ranks[ranks[0].rank == Rank(0) ? 0 : 1];
  const RankTrace& one = ranks[ranks[0].rank == Rank(0) ? 1 : 0];
  EXPECT_EQ(After(zero, TracePoint::kQueued), absl::Milliseconds(30));
  EXPECT_EQ(After(zero, TracePoint::kAdmitted), absl::Milliseconds(30));
  EXPECT_EQ(After(zero, TracePoint::kPublished), absl::Milliseconds(35));
  EXPECT_EQ(After(zero, TracePoint::kDecided), absl::Milliseconds(37));
  EXPECT_EQ(After(zero, TracePoint::kPulled), absl::Milliseconds(45));
  EXPECT_EQ(After(zero, TracePoint::kEnded), absl::Milliseconds(45));
  EXPECT_EQ(After(one, TracePoint::kAdmitted), absl::ZeroDuration());
  EXPECT_EQ(After(one, TracePoint::kPulled), absl::Milliseconds(14));
  EXPECT_EQ(After(one, TracePoint::kEnded), absl::Milliseconds(15));
  EXPECT_EQ(TraceIdOf(zero), TraceIdOf(one));
}

TEST_F(Traces, WhatIsOpenIsToldApart) {
  KeepFor(absl::Minutes(1));
  h.Take(h.Request(0));
  EXPECT_THAT(traces().Read({}, 0, kAll).ranks, IsEmpty());
  const std::vector<RankTrace> open = traces().ReadOpen({}, kAll);
  ASSERT_THAT(open, SizeIs(1));
  EXPECT_EQ(open[0].rank, Rank(0));
  EXPECT_THAT(traces().ReadOpen({GroupId(99)}, kAll), IsEmpty());
}

TEST_F(Traces, AFailedPartEndsWithItsCodeAndLeavesNothingOpen) {
  KeepFor(absl::Minutes(1));
  h.Take(h.Request(0));
  h.SessionDead(h.SessionOf(1), absl::UnavailableError("killed"));
  EXPECT_THAT(traces().ReadOpen({}, kAll), IsEmpty());
  const std::vector<RankTrace> ranks = traces().Read({}, 0, kAll).ranks;
  ASSERT_THAT(ranks, SizeIs(1));
  EXPECT_EQ(ranks[0].code, absl::StatusCode::kUnavailable);
  EXPECT_EQ(After(ranks[0], TracePoint::kAdmitted), -absl::InfiniteDuration());
}

TEST_F(Traces, PagesGoOnWhereTheLastOneEnded) {
  KeepFor(absl::Minutes(1));
  for (uint64_t execution = 0; execution < 3; ++execution) RunOnce(execution);
  OperationTraces::Page page = traces().Read({}, 0, 4);
  EXPECT_THAT(page.ranks, SizeIs(4));
  EXPECT_TRUE(page.more);
  page = traces().Read({}, page.next, 4);
  EXPECT_THAT(page.ranks, SizeIs(2));
  EXPECT_FALSE(page.more);
  EXPECT_EQ(page.num_lost, 0u);
  EXPECT_THAT(traces().Read({}, page.next, 4).ranks, IsEmpty());
}

// Of parts that only it knows of: a tenant with one rank, and operations that need no engine.
class Ring : public ::testing::Test {
 protected:
  Ring() : tenant_(h_.Start(ExchangeHarness::Spec(1))) {
    operation_.tenant = &tenant_;
    operation_.parts.resize(1);
    traces_.KeepUntil(absl::InfiniteFuture());
  }
  OperationTraces::Place Begin(uint64_t execution) {
    operation_.key.execution.number = execution;
    return traces_.Begin(operation_, 0, {}, absl::UnixEpoch());
  }
  void Run(uint64_t execution) {
    traces_.End(Begin(execution), absl::StatusCode::kOk, absl::UnixEpoch());
  }
  static std::vector<uint64_t> Numbers(const std::vector<RankTrace>& ranks) {
    std::vector<uint64_t> numbers;
    for (const RankTrace& rank : ranks) numbers.push_back(rank.key.execution.number);
    return numbers;
  }

  ExchangeHarness h_;
  Tenant tenant_;
  Operation operation_;
  OperationTraces traces_{{.ended = 3, .open = 2}};
};

TEST_F(Ring, TheOldestAreLostAndCounted) {
  Run(0);
  const OperationTraces::Page first = traces_.Read({}, 0, kAll);
  EXPECT_THAT(Numbers(first.ranks), ElementsAre(0));
  for (uint64_t execution = 1; execution <= 5; ++execution) Run(execution);
  const OperationTraces::Page next = traces_.Read({}, first.next, kAll);
  EXPECT_THAT(Numbers(next.ranks), ElementsAre(3, 4, 5));
  EXPECT_EQ(next.num_lost, 2u);
}

TEST_F(Ring, OpenPartsAreBoundedAndPlacesAreUsedAgain) {
  const OperationTraces::Place one = Begin(1);
  EXPECT_NE(Begin(2), OperationTraces::kNone);
  EXPECT_EQ(Begin(3), OperationTraces::kNone);
  traces_.End(one, absl::StatusCode::kOk, absl::UnixEpoch());
  EXPECT_EQ(Begin(4), one);
  EXPECT_THAT(traces_.ReadOpen({}, kAll), SizeIs(2));
}

TEST_F(Ring, TheClientsSpanIsThatOfItsSession) {
  traces_.SetClientSpan(h_.SessionOf(0), ParseTraceparent("00-0123456789abcdef0123456789abcdef-"
                                                          "00f067aa0ba902b7-01"));
  Run(0);
  traces_.ForgetSession(h_.SessionOf(0));
  Run(1);
  const std::vector<RankTrace> ranks = traces_.Read({}, 0, kAll).ranks;
  EXPECT_EQ(ranks[0].client.trace[0], 0x01);
  EXPECT_EQ(ranks[0].client.span[7], 0xb7);
  EXPECT_EQ(ranks[1].client.span[7], 0);
}

// The sample is all users', and a rank writes what it likes into its own records.
TEST_F(Ring, WhatARankSaysOfItsTimesChangesNothingForOthers) {
  const OperationTraces::Limits limits = {.ended = 4000, .open = 1, .parts_per_second = 8};
  absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  DirectOutcome outcome;
  outcome.ended = true;
  const auto note = [&](OperationTraces& traces, absl::Time ended_at) {
    ++outcome.key.execution.number;
    outcome.ended_at = ended_at;
    traces.NoteDirect(outcome, tenant_, now);
  };
  OperationTraces many(limits);
  many.KeepUntil(absl::InfiniteFuture());
  for (int i = 1; i <= 1000; ++i) note(many, now + absl::Seconds(2) * i);
  EXPECT_LE(many.Read({}, 0, kAll).ranks.size(), 100u) << "more than may be kept";

  OperationTraces few(limits);
  few.KeepUntil(absl::InfiniteFuture());
  for (int i = 1; i <= 1000; ++i) note(few, now + absl::Hours(24 * 365));
  const uint64_t before = few.Read({}, 0, kAll).next;
  constexpr size_t kSeconds = 60;
  for (size_t second = 0; second < kSeconds; ++second) note(few, now += absl::Seconds(1));
  EXPECT_GE(few.Read({}, before, kAll).ranks.size(), kSeconds / 2) << "fewer than may be kept";
}

TEST_F(Ring, AboveTheLimitWholeOperationsAreLeftOutButNotWhatIsOpenWhenSomebodyAsks) {
  OperationTraces traces({.ended = 1000, .open = 1000, .parts_per_second = 8});
  traces.KeepUntil(absl::InfiniteFuture());
  const auto begin = [&](uint64_t execution) {
    operation_.key.execution.number = execution;
    return traces.Begin(operation_, 0, {}, absl::UnixEpoch());
  };
  for (uint64_t execution = 0; execution < 100; ++execution) {
    traces.End(begin(execution), absl::StatusCode::kOk, absl::UnixEpoch());
  }
  const std::vector<RankTrace> kept = traces.Read({}, 0, kAll).ranks;
  EXPECT_LT(kept.size(), 60u);
  EXPECT_EQ(kept.front().stands_for, 1u);
  EXPECT_GT(kept.back().stands_for, 2u);
  uint64_t left_out = 100;
  while (begin(left_out) != OperationTraces::kNone) ++left_out;
  EXPECT_NE(traces.BeginOpen(operation_, 0, {}, absl::UnixEpoch()), OperationTraces::kNone);
}

TEST(TraceId, FollowsFromWhatNamesTheOperationAndIsTheSameEverywhere) {
  RankTrace trace;
  trace.group = GroupId(7);
  trace.epoch = Epoch(1);
  trace.formation = Formation(2);
  trace.key.execution.number = 3;
  EXPECT_EQ(absl::BytesToHexString(TraceIdOf(trace)), "a95ed70a28e2fb68774bb7279eaac5f8");
  RankTrace other = trace;
  other.rank = Rank(5);
  EXPECT_EQ(TraceIdOf(other), TraceIdOf(trace));
  other.key.occurrence = 1;
  EXPECT_NE(TraceIdOf(other), TraceIdOf(trace));
  other = trace;
  other.key.execution.program[15] = 1;
  EXPECT_NE(TraceIdOf(other), TraceIdOf(trace));
}

TEST(Traceparent, WhatIsMalformedIsNone) {
  const std::string good = "00-0123456789abcdef0123456789abcdef-00f067aa0ba902b7-01";
  EXPECT_EQ(ParseTraceparent(good).trace[1], 0x23);
  EXPECT_EQ(ParseTraceparent("cc-" + good.substr(3) + "-later").trace[1], 0x23)
      << "a later version";
  for (const std::string& bad :
       {std::string(), std::string("garbage"), good + "-more", "ff-" + good.substr(3),
        good.substr(0, 54), std::string("00-0123456789ABCDEF0123456789abcdef-00f067aa0ba902b7-01"),
        std::string("00-00000000000000000000000000000000-00f067aa0ba902b7-01"),
        std::string("00-0123456789abcdef0123456789abcdef-0000000000000000-01")}) {
    EXPECT_EQ(ParseTraceparent(bad).span[7], 0) << bad;
    EXPECT_EQ(ParseTraceparent(bad).trace[1], 0) << bad;
  }
}

}  // namespace
}  // namespace epd
