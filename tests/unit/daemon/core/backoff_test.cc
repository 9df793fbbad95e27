// Goal: something that keeps dying is started ever more rarely, and one healthy run forgives it
// all.
#include "daemon/core/backoff.h"

#include "gtest/gtest.h"

namespace epd {
namespace {

constexpr Backoff::Policy kPolicy = {absl::Milliseconds(100), absl::Seconds(1), absl::Minutes(1)};

TEST(BackoffTest, WaitDoublesFromMinToMaxAndStaysThere) {
  Backoff backoff(kPolicy);
  for (const int ms : {100, 200, 400, 800, 1000, 1000}) {
    EXPECT_EQ(backoff.AfterEnd(absl::Seconds(1)), absl::Milliseconds(ms));
  }
}

TEST(BackoffTest, OneHealthyRunStartsOverAndAShorterOneDoesNot) {
  Backoff backoff(kPolicy);
  backoff.AfterEnd(absl::ZeroDuration());
  EXPECT_EQ(backoff.AfterEnd(absl::Minutes(1) - absl::Nanoseconds(1)), absl::Milliseconds(200));
  EXPECT_EQ(backoff.AfterEnd(absl::Minutes(1)), absl::Milliseconds(100));
  EXPECT_EQ(backoff.AfterEnd(absl::ZeroDuration()), absl::Milliseconds(200));
}

// Of a thousand nodes that lose etcd at the same moment no twentieth part comes back in the same 50 ms.
TEST(BackoffTest, JitterSpreadsManyOverTheLastPartOfTheWait) {
  Backoff::Policy policy = kPolicy;
  policy.jitter = Backoff::kTowardsOthers;
  int in_slot[20] = {};
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    Backoff backoff(policy, seed);
    for (int i = 0; i < 5; ++i) backoff.AfterFailure();
    const absl::Duration wait = backoff.AfterFailure();
    ASSERT_GT(wait, absl::Milliseconds(500)) << "seed " << seed;
    ASSERT_LE(wait, absl::Seconds(1)) << "seed " << seed;
    ++in_slot[absl::ToInt64Milliseconds(wait) / 50 % 20];
  }
  for (int slot = 10; slot < 20; ++slot) EXPECT_NEAR(in_slot[slot], 100, 50) << slot;
}

TEST(BackoffTest, TheSameSeedGivesTheSameWaitsAndSuccessStartsOver) {
  Backoff::Policy policy = kPolicy;
  policy.jitter = 0.5;
  Backoff one(policy, 7);
  Backoff other(policy, 7);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(one.AfterFailure(), other.AfterFailure());
  one.Reset();
  EXPECT_LE(one.AfterFailure(), policy.min);
}

TEST(BackoffTest, EqualMinAndMaxGiveAConstantWait) {
  Backoff backoff({absl::Seconds(2), absl::Seconds(2), absl::Minutes(1)});
  EXPECT_EQ(backoff.AfterEnd(absl::ZeroDuration()), absl::Seconds(2));
  EXPECT_EQ(backoff.AfterEnd(absl::ZeroDuration()), absl::Seconds(2));
}

}  // namespace
}  // namespace epd
