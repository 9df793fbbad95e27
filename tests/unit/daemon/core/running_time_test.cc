// Goal: a process that was stopped takes none of that time off anybody's deadline, and all the time in which it ran counts.
#include "daemon/core/running_time.h"

#include <gtest/gtest.h>

#include "proto/epd/v1/standstill.h"

namespace epd {
namespace {

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(5);
const absl::Duration kTick = absl::FromChrono(standstill::kTick);
const absl::Duration kSlack = absl::FromChrono(standstill::kSlack);

class RunningTimeTest : public testing::Test {
 protected:
  RunningTimeTest() { time_.Look(kStart); }

  // Sleeps for `asked` at most, and looks after `passed`.
  absl::Duration SleepAndLook(absl::Duration asked, absl::Duration passed) {
    time_.Sleeps(asked);
    return time_.Look(clock_ += passed);
  }

  RunningTime time_;
  absl::Time clock_ = kStart;
};

TEST_F(RunningTimeTest, IsTheClockWhileTheLoopRuns) {
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(SleepAndLook(kTick, kTick), absl::ZeroDuration());
    EXPECT_EQ(SleepAndLook(absl::ZeroDuration(), kSlack), absl::ZeroDuration());
  }
  EXPECT_EQ(time_.now(), clock_);
  EXPECT_EQ(time_.lost(), absl::ZeroDuration());
}

TEST_F(RunningTimeTest, StandsStillWhileTheProcessIsStoppedInItsSleep) {
  EXPECT_EQ(SleepAndLook(kTick, kTick + absl::Minutes(3)), absl::Minutes(3));
  EXPECT_EQ(time_.now(), kStart + kTick);
  SleepAndLook(kTick, kTick);
  EXPECT_EQ(time_.now(), kStart + 2 * kTick);
}

TEST_F(RunningTimeTest, StandsStillWhileTheProcessIsStoppedInItsWork) {
  EXPECT_EQ(time_.Look(kStart + absl::Seconds(9)), absl::Seconds(9));
  EXPECT_EQ(time_.now(), kStart);
}

TEST_F(RunningTimeTest, ALoopThatIsWokenEarlyHasLostNothing) {
  EXPECT_EQ(SleepAndLook(absl::Seconds(60), absl::Seconds(59)), absl::ZeroDuration());
  EXPECT_EQ(time_.now(), clock_);
}

TEST_F(RunningTimeTest, NothingIsLostWhereNothingHasADeadline) {
  EXPECT_EQ(SleepAndLook(RunningTime::Nap(absl::InfiniteDuration()), absl::Hours(7)),
            absl::ZeroDuration());
  EXPECT_EQ(time_.now(), clock_);
}

TEST_F(RunningTimeTest, NapsAreShortWhereADeadlineIsAhead) {
  EXPECT_EQ(RunningTime::Nap(absl::Minutes(10)), kTick);
  EXPECT_EQ(RunningTime::Nap(absl::Milliseconds(3)), absl::Milliseconds(3));
  EXPECT_EQ(RunningTime::Nap(-absl::Seconds(1)), absl::ZeroDuration());
}

TEST_F(RunningTimeTest, AClockThatGoesBackLosesNothing) {
  EXPECT_EQ(SleepAndLook(kTick, -absl::Seconds(3)), absl::ZeroDuration());
}

// Traces are of the clock, which other processes read, too.
TEST_F(RunningTimeTest, EachReadingOfTheClockHasItsTimeAndBack) {
  SleepAndLook(kTick, absl::Seconds(10));
  SleepAndLook(kTick, kTick);
  SleepAndLook(kTick, absl::Seconds(20));
  for (const absl::Duration after : {absl::ZeroDuration(), kTick, absl::Seconds(11)}) {
    const absl::Time clock =
        after == absl::Seconds(11) ? clock_ + absl::Seconds(1) : kStart + after;
    EXPECT_EQ(time_.ToClock(time_.FromClock(clock)), clock) << after;
  }
  EXPECT_EQ(time_.FromClock(kStart + absl::Seconds(5)), kStart + kTick) << "it was stopped then";
  EXPECT_EQ(time_.FromClock(clock_), time_.now());
  for (size_t i = 0; i < 3 * RunningTime::kKept; ++i) SleepAndLook(kTick, absl::Seconds(1));
  SleepAndLook(kTick, kTick);
  EXPECT_EQ(time_.FromClock(clock_), time_.now());
  EXPECT_EQ(time_.ToClock(time_.now()), clock_);
}

}  // namespace
}  // namespace epd
