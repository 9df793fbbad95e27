// Goal: epd ends when it is told to, at once when it is told twice, and by itself only when nobody
// has used it for as long as was asked for.
#include "daemon/node/lifetime.h"

#include "gtest/gtest.h"

namespace epd {
namespace {

const absl::Time kStart = absl::UnixEpoch();
constexpr absl::Duration kIdle = absl::Seconds(10);

TEST(LifetimeTest, TheFirstCallBeginsTheEndAndTheSecondIsTheEnd) {
  Lifetime life(absl::ZeroDuration(), kStart);
  EXPECT_TRUE(life.BeginEnd());
  EXPECT_TRUE(life.ending());
  EXPECT_FALSE(life.ended());
  EXPECT_FALSE(life.BeginEnd());
  EXPECT_TRUE(life.ended());
  EXPECT_TRUE(life.hurried());
}

TEST(LifetimeTest, AnOrderlyEndIsNotHurried) {
  Lifetime life(absl::ZeroDuration(), kStart);
  EXPECT_TRUE(life.BeginEnd());
  life.Finish();
  EXPECT_TRUE(life.ended());
  EXPECT_FALSE(life.hurried());
}

TEST(LifetimeTest, IdlenessCountsFromTheLastSessionAndNotFromTheStart) {
  Lifetime life(kIdle, kStart);
  EXPECT_EQ(life.NextDeadline(/*has_sessions=*/false), kStart + kIdle);
  EXPECT_EQ(life.NextDeadline(/*has_sessions=*/true), absl::InfiniteFuture());
  EXPECT_FALSE(life.IsIdle(kStart + 3 * kIdle, /*has_sessions=*/true));
  const absl::Time end = kStart + 4 * kIdle;
  EXPECT_FALSE(life.IsIdle(end - absl::Milliseconds(1), /*has_sessions=*/false));
  EXPECT_EQ(life.NextDeadline(/*has_sessions=*/false), end);
  EXPECT_TRUE(life.IsIdle(end, /*has_sessions=*/false));
}

TEST(LifetimeTest, WithoutTheSettingAndWhileItEndsItIsNeverIdle) {
  Lifetime for_ever(absl::ZeroDuration(), kStart);
  EXPECT_FALSE(for_ever.IsIdle(absl::InfiniteFuture(), /*has_sessions=*/false));
  EXPECT_EQ(for_ever.NextDeadline(/*has_sessions=*/false), absl::InfiniteFuture());
  Lifetime ending(kIdle, kStart);
  EXPECT_TRUE(ending.BeginEnd());
  EXPECT_FALSE(ending.IsIdle(kStart + 2 * kIdle, /*has_sessions=*/false));
  EXPECT_EQ(ending.NextDeadline(/*has_sessions=*/false), absl::InfiniteFuture());
}

}  // namespace
}  // namespace epd
