// Goal: ranks that execute the same programs in the same order number them alike, whatever XLA's
// run ids are.
#include "client/jax/runs.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>

namespace epd::jax {
namespace {

using Outcome = Runs::Outcome;

CallSite Site(Operation operation = Operation::kPrepare) {
  EndCompile();
  CallConfig config;
  config.operation = operation;
  config.alias = "default";
  return *AddCallSite(config);
}

class RunsTest : public testing::Test {
 protected:
  // Starts and ends a call.
  CallNumber Call(const CallSite& site, std::int64_t run_id, std::uint32_t rank = 0) {
    CallNumber number;
    EXPECT_EQ(Start(site, run_id, rank, &number), Outcome::kOk);
    runs_.End({site, run_id, rank});
    return number;
  }

  Outcome Start(const CallSite& site, std::int64_t run_id, std::uint32_t rank, CallNumber* number) {
    return runs_.Start({site, run_id, rank}, membership_, begin_, number);
  }

  Runs runs_;
  std::uint64_t membership_ = 1;
  std::map<std::pair<std::uint32_t, Digest>, std::uint64_t> begun_;
  Runs::Begin begin_ = [this](std::uint32_t rank, const Digest& program) {
    return begun_[{rank, program}]++;
  };
};

TEST_F(RunsTest, UnseenRunIdsCountUpPerProgramAndRank) {
  const CallSite one = Site(), two = Site(Operation::kCombine);
  EXPECT_EQ(Call(one, 77).execution, 0u);
  EXPECT_EQ(Call(two, 78).execution, 0u);
  EXPECT_EQ(Call(one, 5).execution, 1u);  // Smaller than before: run ids have no order.
  EXPECT_EQ(Call(one, 5, 1).execution, 0u);
  EXPECT_EQ(Call(one, 100).execution, 2u);
}

TEST_F(RunsTest, CallsOfOneRunShareItsNumberAndLoopsCountOccurrences) {
  const CallSite first = Site();
  CallSite second = first;
  second.ordinal = 1;
  EXPECT_EQ(Call(first, 9).occurrence, 0u);
  EXPECT_EQ(Call(second, 9).occurrence, 0u);
  EXPECT_EQ(Call(first, 9).occurrence, 1u);
  EXPECT_EQ(Call(second, 9).execution, 0u);
  EXPECT_EQ(Call(first, 10).occurrence, 0u);
}

TEST_F(RunsTest, ExecutablesOfOneDigestShareACounter) {
  const CallSite train = Site(), eval = Site();
  EXPECT_EQ(Call(train, 1).execution, 0u);
  EXPECT_EQ(Call(eval, 1).execution, 1u);  // The same run id in another executable is another run.
  EXPECT_EQ(Call(train, 2).execution, 2u);
}

TEST_F(RunsTest, ARunThatOverlapsAnotherOfItsProgramOnTheRankIsRefused) {
  const CallSite site = Site();
  CallNumber number;
  ASSERT_EQ(Start(site, 1, 0, &number), Outcome::kOk);
  EXPECT_EQ(Start(site, 2, 0, &number), Outcome::kOverlap);
  EXPECT_EQ(number.execution, 1u) << "the refusal must reach the other ranks' second execution";
  runs_.End({site, 2, 0});
  EXPECT_EQ(Start(site, 2, 1, &number), Outcome::kOk) << "another rank is another device";
  runs_.End({site, 1, 0});
  EXPECT_EQ(Start(site, 2, 0, &number), Outcome::kOk);
  EXPECT_EQ(Start(site, 1, 0, &number), Outcome::kOverlap) << "an older run comes back";
}

TEST_F(RunsTest, CallsWithANameAreNotNumberedAndNeverOverlap) {
  EndCompile();
  CallConfig config;
  config.name = "boundary";
  const CallSite one = *AddCallSite(config);
  EndCompile();
  const CallSite other = *AddCallSite(config);
  CallNumber number;
  ASSERT_EQ(Start(one, 1, 0, &number), Outcome::kOk);
  EXPECT_EQ(Start(other, 2, 0, &number), Outcome::kOk);
  EXPECT_TRUE(begun_.empty());
}

TEST_F(RunsTest, ARunOfAnEarlierMembershipIsStaleOnAllItsRanks) {
  const CallSite site = Site();
  Call(site, 1, 0);
  membership_ = 2;
  CallNumber number;
  EXPECT_TRUE(runs_.IsStale({site, 1, 1}, 2));
  EXPECT_EQ(Start(site, 1, 1, &number), Outcome::kStale);
  EXPECT_EQ(Start(site, 2, 0, &number), Outcome::kOk);
}

TEST_F(RunsTest, ACondemnedRunIsStaleThoughItNeverBegan) {
  const CallSite site = Site();
  runs_.Condemn({site, 3, 0}, 1);
  EXPECT_FALSE(runs_.IsStale({site, 3, 0}, 1));
  EXPECT_TRUE(runs_.IsStale({site, 3, 0}, 2));
  EXPECT_FALSE(runs_.IsStale({site, 4, 0}, 2));
}

TEST_F(RunsTest, ManyRunsAreNumberedWithoutGaps) {
  const CallSite site = Site();
  for (std::uint64_t run = 0; run < 1000; ++run) {
    ASSERT_EQ(Call(site, static_cast<std::int64_t>(run * 7919 % 1009)).execution, run);
  }
}

}  // namespace
}  // namespace epd::jax
