// Goal: no user fills the log, each has lines of his own, and how many were left out is said.
#include "daemon/observe/line_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "daemon/observe/user_log.h"

namespace epd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class LineLimitsTest : public ::testing::Test {
 protected:
  // How many are written.
  uint64_t Admit(uint32_t uid, const std::string& what, uint64_t count) {
    uint64_t num_written = 0;
    for (uint64_t i = 0; i < count; ++i) num_written += limits_.Admit(uid, what, now_);
    return num_written;
  }

  LineLimits limits_;
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(LineLimitsTest, AUserHasSomeLinesOfAKindAtOnceAndThenFew) {
  EXPECT_EQ(Admit(1001, "session ended", 100000), LineLimits::kAtOnce);
  now_ += absl::Seconds(60);
  EXPECT_EQ(Admit(1001, "session ended", 100000), 60 * LineLimits::kPerSecond);
}

TEST_F(LineLimitsTest, OtherUsersAndOtherKindsHaveTheirOwn) {
  Admit(1001, "session ended", 100000);
  EXPECT_EQ(Admit(1002, "session ended", 10), 10u);
  EXPECT_EQ(Admit(1001, "joined", 10), 10u);
}

TEST_F(LineLimitsTest, WhatWasLeftOutIsToldOnceAndNotTooOften) {
  EXPECT_THAT(limits_.TakeLeftOut(now_), IsEmpty());
  Admit(1001, "joined", LineLimits::kAtOnce + 7);
  EXPECT_THAT(limits_.TakeLeftOut(now_), IsEmpty());
  now_ += LineLimits::kTellEvery;
  const auto told = limits_.TakeLeftOut(now_);
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_EQ(told[0].uid, 1001u);
  EXPECT_EQ(told[0].what, "joined");
  EXPECT_EQ(told[0].num_lines, 7u);
  now_ += LineLimits::kTellEvery;
  EXPECT_THAT(limits_.TakeLeftOut(now_), IsEmpty());
}

TEST_F(LineLimitsTest, WhoIsForgottenHasWhatHeHad) {
  Admit(1001, "joined", 10);
  now_ += absl::Hours(1);
  limits_.TakeLeftOut(now_);
  EXPECT_EQ(Admit(1001, "joined", 100000), LineLimits::kAtOnce);
  now_ += LineLimits::kTellEvery;
  limits_.TakeLeftOut(now_);
  EXPECT_EQ(Admit(1001, "joined", 100000),
            LineLimits::kPerSecond * absl::ToInt64Seconds(LineLimits::kTellEvery));
}

TEST(UserLogTest, AFloodIsCutOffAndCounted) {
  const std::string path = testing::TempDir() + "/user_log_test.log";
  std::remove(path.c_str());
  ASSERT_TRUE(OpenLog("info", path).ok());
  LogWhatWasLeftOut();
  constexpr uint64_t kLines = LineLimits::kAtOnce + 10000;
  for (uint64_t i = 0; i < kLines; ++i)
    LogOfUser(1001, LogLevel::kInfo, "session ended", {{"session", i}});
  LogOfUser(1002, LogLevel::kInfo, "session ended", {{"session", "another's"}});
  FlushLog(absl::Seconds(10));
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto num_lines = static_cast<uint64_t>(std::count(text.begin(), text.end(), '\n'));
  EXPECT_GE(num_lines, LineLimits::kAtOnce);
  EXPECT_LE(num_lines, LineLimits::kAtOnce + 100);
  EXPECT_THAT(text, AllOf(HasSubstr("session=0"), HasSubstr("another's")));
}

}  // namespace
}  // namespace epd
