// Goal: a client that was stopped gives those that it waits for the time that it lost, and no more.
#include "client/c/running_deadline.h"

#include <gtest/gtest.h>

namespace epd::client {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;
using TimePoint = RunningDeadline::TimePoint;

const TimePoint kStart = TimePoint() + std::chrono::hours(5);

TEST(RunningDeadlineTest, PassesAtItsTimeForAProcessThatLooks) {
  RunningDeadline deadline(kStart + seconds(10), kStart);
  TimePoint now = kStart;
  for (; now + standstill::kTick < kStart + seconds(10); now += standstill::kTick)
    ASSERT_FALSE(deadline.Passed(now));
  EXPECT_EQ(deadline.at(), kStart + seconds(10));
  EXPECT_FALSE(deadline.Passed(kStart + seconds(10) - std::chrono::nanoseconds(1)));
  EXPECT_TRUE(deadline.Passed(kStart + seconds(10)));
}

TEST(RunningDeadlineTest, WaitsAsMuchLongerAsTheProcessWasStopped) {
  RunningDeadline deadline(kStart + seconds(10), kStart);
  TimePoint now = kStart + standstill::kTick + minutes(60);
  EXPECT_FALSE(deadline.Passed(now));
  EXPECT_EQ(deadline.at(), kStart + seconds(10) + minutes(60));
  EXPECT_FALSE(deadline.Passed(now + standstill::kTick));
  now += minutes(7);
  EXPECT_FALSE(deadline.Passed(now)) << "it was stopped again";
  EXPECT_EQ(deadline.at(), kStart + seconds(10) + minutes(67) - standstill::kTick * 2);
}

TEST(RunningDeadlineTest, ABusyMachineChangesNothing) {
  RunningDeadline deadline(kStart + seconds(1), kStart);
  EXPECT_FALSE(deadline.Passed(kStart + standstill::kTick + standstill::kSlack));
  EXPECT_EQ(deadline.at(), kStart + seconds(1));
}

TEST(RunningDeadlineTest, LooksInTimeAndAtTheEnd) {
  RunningDeadline deadline(kStart + standstill::kTick * 3 / 2, kStart);
  EXPECT_EQ(deadline.NextLook(), kStart + standstill::kTick);
  EXPECT_FALSE(deadline.Passed(kStart + standstill::kTick));
  EXPECT_EQ(deadline.NextLook(), kStart + standstill::kTick * 3 / 2);
}

TEST(RunningDeadlineTest, TheFirstAndTheLastOfTimesStayWhatTheyAre) {
  RunningDeadline never(TimePoint::max(), kStart);
  EXPECT_FALSE(never.Passed(kStart + minutes(60)));
  EXPECT_EQ(never.at(), TimePoint::max());
  RunningDeadline at_once(TimePoint::min(), kStart);
  EXPECT_TRUE(at_once.Passed(kStart));
  EXPECT_TRUE(at_once.Passed(kStart + minutes(60)));
}

}  // namespace
}  // namespace epd::client
