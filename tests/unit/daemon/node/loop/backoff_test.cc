// Goal: something that keeps dying is started ever more rarely, and one healthy run forgives it
// all.
#include "daemon/node/loop/backoff.h"

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

TEST(BackoffTest, EqualMinAndMaxGiveAConstantWait) {
  Backoff backoff({absl::Seconds(2), absl::Seconds(2), absl::Minutes(1)});
  EXPECT_EQ(backoff.AfterEnd(absl::ZeroDuration()), absl::Seconds(2));
  EXPECT_EQ(backoff.AfterEnd(absl::ZeroDuration()), absl::Seconds(2));
}

}  // namespace
}  // namespace epd
