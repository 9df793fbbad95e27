// Goal: so much at once and so much a second, and nothing that comes in small parts is lost.
#include "daemon/core/allowance.h"

#include <gtest/gtest.h>

namespace epd {
namespace {

constexpr absl::Time kBegin = absl::UnixEpoch();

TEST(AllowanceTest, WhatIsTakenComesBackWithTimeAndNoMoreThanABurst) {
  Allowance allowance(/*burst=*/100, /*per_second=*/1000);
  EXPECT_EQ(allowance.Left(kBegin), 100u);
  allowance.Take(70);
  EXPECT_EQ(allowance.Left(kBegin), 30u);
  EXPECT_EQ(allowance.Left(kBegin + absl::Milliseconds(20)), 50u);
  EXPECT_EQ(allowance.Left(kBegin + absl::Hours(1)), 100u);
}

TEST(AllowanceTest, MoreThanThereIsTakesAll) {
  Allowance allowance(100, 1000);
  allowance.Left(kBegin);
  allowance.Take(250);
  EXPECT_EQ(allowance.Left(kBegin), 0u);
}

TEST(AllowanceTest, WhoAsksOftenGetsAsMuch) {
  Allowance allowance(100, 1000);
  allowance.Left(kBegin);
  allowance.Take(100);
  for (int i = 1; i <= 500; ++i) allowance.Left(kBegin + i * absl::Microseconds(100));
  EXPECT_EQ(allowance.Left(kBegin + absl::Milliseconds(50)), 50u);
}

TEST(AllowanceTest, ATimeThatIsEarlierGivesNothing) {
  Allowance allowance(100, 1000);
  allowance.Left(kBegin);
  allowance.Take(100);
  EXPECT_EQ(allowance.Left(kBegin - absl::Seconds(1)), 0u);
}

}  // namespace
}  // namespace epd
