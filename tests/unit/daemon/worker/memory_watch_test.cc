// Goal: staging grows into no memory that a limit does not leave to it, whoever lowered it or used it meanwhile, and whoever is
// refused hears which limit it is.
#include "daemon/worker/shell/memory_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

namespace epd {
namespace {

using testing::HasSubstr;

constexpr uint64_t kMib = uint64_t{1} << 20;
constexpr uint64_t kBudget = 256 * kMib;
constexpr uint64_t kPiece = 2 * kMib;

TEST(ShortBytesTest, WhatALimitLeavesBesideOthersCanBeHad) {
  const auto short_of = [](uint64_t present, uint64_t limit, uint64_t used) {
    return ShortBytes(kBudget, present, {limit, used, ""});
  };
  EXPECT_EQ(short_of(0, 1024 * kMib, 0), 0u);
  EXPECT_EQ(short_of(0, 1024 * kMib, 704 * kMib), 0u) << "320 MiB, of which 64 are for others";
  EXPECT_EQ(short_of(0, 1024 * kMib, 705 * kMib), kMib);
  EXPECT_EQ(short_of(0, 1024 * kMib, 1000 * kMib), kBudget) << "nothing but for others";
  EXPECT_EQ(short_of(200 * kMib, 1024 * kMib, 1000 * kMib), 56 * kMib) << "what is there stays";
  EXPECT_EQ(short_of(kBudget, 128 * kMib, 400 * kMib), 0u) << "over the limit already";
  EXPECT_EQ(short_of(0, 96 * kMib, 50 * kMib), kBudget - 40 * kMib)
      << "a small one, of which 6 are";
  EXPECT_EQ(short_of(kMib, UINT64_MAX, 0), 0u);
}

class MemoryWatchTest : public testing::Test {
 protected:
  MemoryWatchTest()
      : watch_(kBudget, [this](const std::string& path) -> std::optional<std::string> {
          ++num_reads_;
          const auto found = files_.find(path);
          if (found == files_.end()) return std::nullopt;
          return found->second;
        }) {
    files_["/proc/self/cgroup"] = "0::/job\n";
    files_["/proc/self/mountinfo"] = "31 23 0:28 / /cg rw - cgroup2 cgroup2 rw\n";
  }
  void SetLimit(uint64_t limit, uint64_t used) {
    files_["/cg/job/memory.max"] = std::to_string(limit);
    files_["/cg/job/memory.current"] = std::to_string(used);
  }
  void Pass(absl::Duration time) { now_ += time; }

  std::map<std::string, std::string> files_;
  int num_reads_ = 0;
  MemoryWatch watch_;
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(MemoryWatchTest, WhereThereIsNoLimitNothingIsShort) {
  watch_.Look(0, now_);
  EXPECT_EQ(watch_.short_bytes(), 0u);
  EXPECT_EQ(watch_.next_look(), absl::InfiniteFuture());
  EXPECT_TRUE(watch_.MayMake(kPiece, kPiece, now_).ok());
  EXPECT_FALSE(watch_.TakeLine(now_).has_value());
}

TEST_F(MemoryWatchTest, ALimitThatWasLoweredIsNamedUntilItIsRaisedAgain) {
  SetLimit(1024 * kMib, 100 * kMib);
  watch_.Look(0, now_);
  EXPECT_EQ(watch_.short_bytes(), 0u);
  SetLimit(200 * kMib, 100 * kMib);
  watch_.Look(0, now_);
  EXPECT_GT(watch_.short_bytes(), kBudget / 2);
  EXPECT_THAT(watch_.why(),
              HasSubstr("/cg/job/memory.max allows 209715200 bytes, of which 104857600"));
  EXPECT_EQ(watch_.next_look(), now_ + absl::Seconds(1));
  SetLimit(1024 * kMib, 100 * kMib);
  watch_.Look(0, now_);
  EXPECT_EQ(watch_.short_bytes(), 0u);
  EXPECT_EQ(watch_.why(), "");
  EXPECT_EQ(watch_.next_look(), absl::InfiniteFuture());
}

TEST_F(MemoryWatchTest, TheMachinesOwnMemoryIsALimitToo) {
  files_["/proc/meminfo"] =
      "MemTotal:       1048576 kB\nMemFree:  10 kB\nMemAvailable:     131072 kB\nSwapFree: 0 kB\n";
  watch_.Look(0, now_);
  EXPECT_EQ(watch_.short_bytes(), kBudget - 64 * kMib);
  EXPECT_THAT(watch_.why(), HasSubstr("/proc/meminfo"));
  files_["/proc/meminfo"] = "MemTotal: 1048576 kB\nMemAvailable: 131072 kB\nSwapFree: 524288 kB\n";
  watch_.Look(0, now_);
  EXPECT_EQ(watch_.short_bytes(), 0u);
}

// Made pages are in use only once they are made, and others take memory meanwhile.
TEST_F(MemoryWatchTest, PagesAreNotMadeIntoWhatIsLeftToOthers) {
  uint64_t made = 0;
  uint64_t others = 100 * kMib;
  const auto make = [&] {
    SetLimit(1024 * kMib, others + made);
    const absl::Status may = watch_.MayMake(kPiece, made + kPiece, now_);
    if (may.ok()) made += kPiece;
    return may;
  };
  while (made < 64 * kMib) ASSERT_TRUE(make().ok());
  others = 900 * kMib;
  absl::Status may;
  while (may.ok() && made < kBudget) may = make();
  // Half of what is others' at least, and what is made between two looks at most beside it.
  EXPECT_LE(others + made, (1024 - 32) * kMib);
  EXPECT_GE(others + made, (1024 - 64) * kMib);
  EXPECT_EQ(may.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(may.message(), HasSubstr("/cg/job/memory.max allows 1073741824 bytes"));
  EXPECT_GT(watch_.short_bytes(), 0u) << "the next is not admitted";
  others = 100 * kMib;
  EXPECT_TRUE(make().ok()) << "it is looked at again";
}

TEST_F(MemoryWatchTest, LimitsAreNotReadForEachPiece) {
  SetLimit(1024 * kMib, 0);
  ASSERT_TRUE(watch_.MayMake(kPiece, kPiece, now_).ok());
  const int of_a_look = num_reads_;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(watch_.MayMake(kPiece, kPiece, now_).ok());
  EXPECT_EQ(num_reads_, of_a_look);
  Pass(absl::Seconds(1));
  ASSERT_TRUE(watch_.MayMake(kPiece, kPiece, now_).ok());
  EXPECT_EQ(num_reads_, 2 * of_a_look) << "others may have used memory";
}

TEST_F(MemoryWatchTest, ALineIsSaidOncePerShortageAndAtMostOnceAMinute) {
  SetLimit(200 * kMib, 100 * kMib);
  watch_.Look(0, now_);
  EXPECT_TRUE(watch_.TakeLine(now_).has_value());
  watch_.Look(0, now_);
  EXPECT_FALSE(watch_.TakeLine(now_).has_value());
  for (int i = 0; i < 59; ++i) {
    SetLimit((i % 2 == 0 ? 1024 : 200) * kMib, 100 * kMib);
    Pass(absl::Seconds(1));
    watch_.Look(0, now_);
    EXPECT_FALSE(watch_.TakeLine(now_).has_value()) << i;
  }
  SetLimit(200 * kMib, 100 * kMib);
  Pass(absl::Seconds(1));
  watch_.Look(0, now_);
  EXPECT_TRUE(watch_.TakeLine(now_).has_value());
}

}  // namespace
}  // namespace epd
