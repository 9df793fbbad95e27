// Goal: the offset between two clocks is known as well as the fastest answer allows, and the error is told.
#include "daemon/rpc/cluster/clock_offset.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "tests/seed/seed.h"

namespace epd {
namespace {

constexpr int64_t kAhead =
    -7'000'000'000'000;  // The other clock, which was started two hours later.

ClockOffset::Sample Make(int64_t asked, int64_t forth, int64_t there, int64_t back) {
  return {.asked = asked,
          .received = asked + forth + kAhead,
          .sent = asked + forth + there + kAhead,
          .answered = asked + forth + there + back};
}

TEST(ClockOffsetTest, NothingIsKnownWithoutAnAnswer) {
  EXPECT_FALSE(ClockOffset().Best(0).has_value());
}

TEST(ClockOffsetTest, TheShortestRoundTripCounts) {
  ClockOffset offset;
  offset.Add(Make(1000, 400'000, 50, 10'000));
  offset.Add(Make(2'000'000, 5'000, 900'000, 6'000));  // Long there, which is no part of the way.
  offset.Add(Make(3'000'000, 9'000, 10, 80'000));
  const auto best = offset.Best(4'000'000);
  ASSERT_TRUE(best.has_value());
  EXPECT_EQ(best->round_trip_ns, 11'000);
  EXPECT_EQ(best->offset_ns, kAhead - 500);
  EXPECT_EQ(best->num_samples, 3u);
}

TEST(ClockOffsetTest, TimesThatRunBackwardsAreLeftOut) {
  ClockOffset offset;
  offset.Add({.asked = 10, .received = 100, .sent = 90, .answered = 20});
  offset.Add({.asked = 10, .received = 100, .sent = 200, .answered = 20});
  EXPECT_FALSE(offset.Best(20).has_value());
}

TEST(ClockOffsetTest, OldSamplesAndOldRoundsAreForgotten) {
  ClockOffset offset;
  offset.Add(Make(0, 10, 0, 10));
  EXPECT_TRUE(offset.Best(ClockOffset::kOld).has_value());
  EXPECT_FALSE(offset.Best(ClockOffset::kOld + 21).has_value());
  for (size_t i = 0; i < ClockOffset::kKept; ++i) offset.Add(Make(1000, 500, 0, 500));
  EXPECT_EQ(offset.Best(3000)->round_trip_ns, 1000);
}

TEST(ClockOffsetTest, TheErrorIsAtMostHalfOfTheRoundTrip) {
  std::mt19937_64 random(testing::TestSeed());
  std::uniform_int_distribution<int64_t> wait(0, 1'000'000);
  for (int round = 0; round < 1000; ++round) {
    ClockOffset offset;
    for (int i = 0; i < 8; ++i) offset.Add(Make(i, wait(random), wait(random), wait(random)));
    const auto best = offset.Best(10'000'000);
    EXPECT_LE(std::abs(best->offset_ns - kAhead), best->round_trip_ns / 2 + 1);
  }
}

}  // namespace
}  // namespace epd
