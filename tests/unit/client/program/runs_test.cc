// Goal: ranks that execute the same programs in the same order number them alike, whatever
// their executions are called.
#include "client/program/runs.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>

namespace epd::program {
namespace {

using Outcome = Runs::Outcome;

// A call of the only site of a program of its own executable.
Runs::Call Site(std::uint8_t program = 0) {
  static std::uint64_t executables = 0;
  Runs::Call call;
  call.executable = ++executables;
  call.program[0] = program;
  return call;
}

class RunsTest : public testing::Test {
 protected:
  // Starts and ends a call.
  CallNumber Call(const Runs::Call& site, std::uint64_t run_id, std::uint32_t rank = 0) {
    CallNumber number;
    EXPECT_EQ(Start(site, run_id, rank, &number), Outcome::kOk);
    runs_.End(At(site, run_id, rank));
    return number;
  }

  Outcome Start(const Runs::Call& site, std::uint64_t run_id, std::uint32_t rank,
                CallNumber* number) {
    return runs_.Start(At(site, run_id, rank), join_, begin_, number);
  }

  static Runs::Call At(Runs::Call site, std::uint64_t run_id, std::uint32_t rank) {
    site.execution = run_id;
    site.rank = rank;
    return site;
  }

  Runs runs_;
  std::uint64_t join_ = 1;
  std::map<std::pair<std::uint32_t, Digest>, std::uint64_t> begun_;
  Runs::Begin begin_ = [this](std::uint32_t rank, const Digest& program) {
    return begun_[{rank, program}]++;
  };
};

TEST_F(RunsTest, WhatIsCarriedOverIsNumberedAnewInTheOrderOfItsNextCalls) {
  const Runs::Call one = Site(), two = Site(1);
  Call(one, 77);
  Call(two, 78);
  Call(one, 79);
  runs_.CarryOver(join_);
  EXPECT_FALSE(runs_.IsStale(At(one, 79, 0), join_ + 1));
  ++join_;
  begun_.clear();
  const CallNumber next = Call(one, 79);
  EXPECT_EQ(next.execution, 0u);
  EXPECT_EQ(next.occurrence, 1u) << "the second use of its site";
  EXPECT_EQ(Call(one, 80).execution, 1u);
  EXPECT_EQ(Call(two, 81).execution, 0u);
}

TEST_F(RunsTest, UnseenRunIdsCountUpPerProgramAndRank) {
  const Runs::Call one = Site(), two = Site(1);
  EXPECT_EQ(Call(one, 77).execution, 0u);
  EXPECT_EQ(Call(two, 78).execution, 0u);
  EXPECT_EQ(Call(one, 5).execution, 1u);  // Smaller than before: run ids have no order.
  EXPECT_EQ(Call(one, 5, 1).execution, 0u);
  EXPECT_EQ(Call(one, 100).execution, 2u);
}

TEST_F(RunsTest, CallsOfOneRunShareItsNumberAndLoopsCountOccurrences) {
  const Runs::Call first = Site();
  Runs::Call second = first;
  second.site = 1;
  EXPECT_EQ(Call(first, 9).occurrence, 0u);
  EXPECT_EQ(Call(second, 9).occurrence, 0u);
  EXPECT_EQ(Call(first, 9).occurrence, 1u);
  EXPECT_EQ(Call(second, 9).execution, 0u);
  EXPECT_EQ(Call(first, 10).occurrence, 0u);
}

TEST_F(RunsTest, ExecutablesOfOneDigestShareACounter) {
  const Runs::Call train = Site(), eval = Site();
  EXPECT_EQ(Call(train, 1).execution, 0u);
  EXPECT_EQ(Call(eval, 1).execution, 1u);  // The same run id in another executable is another run.
  EXPECT_EQ(Call(train, 2).execution, 2u);
}

TEST_F(RunsTest, ARunThatOverlapsAnotherOfItsProgramOnTheRankIsRefused) {
  const Runs::Call site = Site();
  CallNumber number;
  ASSERT_EQ(Start(site, 1, 0, &number), Outcome::kOk);
  EXPECT_EQ(Start(site, 2, 0, &number), Outcome::kOverlap);
  EXPECT_EQ(number.execution, 1u) << "the refusal must reach the other ranks' second execution";
  runs_.End(At(site, 2, 0));
  EXPECT_EQ(Start(site, 2, 1, &number), Outcome::kOk) << "another rank is another device";
  runs_.End(At(site, 1, 0));
  EXPECT_EQ(Start(site, 2, 0, &number), Outcome::kOk);
  EXPECT_EQ(Start(site, 1, 0, &number), Outcome::kOverlap) << "an older run comes back";
}

TEST_F(RunsTest, CallsWithANameAreNotNumberedAndNeverOverlap) {
  Runs::Call one = Site(), other = Site();
  one.named = other.named = true;
  CallNumber number;
  ASSERT_EQ(Start(one, 1, 0, &number), Outcome::kOk);
  EXPECT_EQ(Start(other, 2, 0, &number), Outcome::kOk);
  EXPECT_TRUE(begun_.empty());
}

TEST_F(RunsTest, AnOccurrenceThatTheCallerGivesIsNotCounted) {
  Runs::Call site = Site();
  site.occurrence = 8;
  EXPECT_EQ(Call(site, 9).occurrence, 7u);
  EXPECT_EQ(Call(site, 9).occurrence, 7u);
}

TEST_F(RunsTest, ARunOfAnEarlierJoinIsStaleOnAllItsRanks) {
  const Runs::Call site = Site();
  Call(site, 1, 0);
  join_ = 2;
  CallNumber number;
  EXPECT_TRUE(runs_.IsStale(At(site, 1, 1), 2));
  EXPECT_EQ(Start(site, 1, 1, &number), Outcome::kStale);
  EXPECT_EQ(Start(site, 2, 0, &number), Outcome::kOk);
}

TEST_F(RunsTest, ACondemnedRunIsStaleThoughItNeverBegan) {
  const Runs::Call site = Site();
  runs_.Condemn(At(site, 3, 0), 1);
  EXPECT_FALSE(runs_.IsStale(At(site, 3, 0), 1));
  EXPECT_TRUE(runs_.IsStale(At(site, 3, 0), 2));
  EXPECT_FALSE(runs_.IsStale(At(site, 4, 0), 2));
}

TEST_F(RunsTest, AnExecutionThatNewerOnesHaveOvertakenGoesOnUnderItsNumber) {
  const Runs::Call site = Site();
  for (std::uint64_t n = 0; n < 1000; ++n) Call(site, n);
  Runs::Call gradient = At(site, 5000, 0);
  epd_program_begun begun = {sizeof begun, join_, 3};
  gradient.begun = &begun;
  gradient.occurrence = 2;
  CallNumber number;
  EXPECT_FALSE(runs_.IsStale(gradient, join_));
  ASSERT_EQ(runs_.Start(gradient, join_, begin_, &number), Outcome::kOk);
  EXPECT_EQ(number.execution, 3u);
  EXPECT_EQ(number.occurrence, 1u);
  EXPECT_EQ(Call(site, 5001).execution, 1000u) << "it overlaps nothing";
  runs_.End(gradient);

  runs_.CarryOver(join_);
  begun_.clear();
  EXPECT_FALSE(runs_.IsStale(gradient, join_ + 1));
  ASSERT_EQ(runs_.Start(gradient, join_ + 1, begin_, &number), Outcome::kOk);
  EXPECT_EQ(number.execution, 0u) << "numbered anew where nothing was lost";
  EXPECT_EQ(begun.join, join_ + 1);
  EXPECT_TRUE(runs_.IsStale(gradient, join_ + 2)) << "what came after it was lost";
}

TEST_F(RunsTest, ManyRunsAreNumberedWithoutGaps) {
  const Runs::Call site = Site();
  for (std::uint64_t run = 0; run < 1000; ++run) {
    ASSERT_EQ(Call(site, run * 7919 % 1009).execution, run);
  }
}

}  // namespace
}  // namespace epd::program
