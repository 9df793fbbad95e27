// Goal: however many operations there are, about as many are kept as may be, the same ones by every worker, and all again once there
// are few.
#include "daemon/worker/engine/trace_sample.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "daemon/worker/engine/mixed_hash.h"

namespace epd {
namespace {

constexpr uint64_t kLimit = 1000;

// `per_second` operations of four ranks each here, for `seconds`. What each one that was kept stands for, in the last second.
class Load {
 public:
  std::map<uint64_t, uint32_t> Run(uint64_t per_second, int seconds) {
    std::map<uint64_t, uint32_t> kept;
    for (int s = 0; s < seconds; ++s) {
      kept.clear();
      num_parts_ = 0;
      for (uint64_t i = 0; i < per_second; ++i) {
        const uint64_t operation = next_++;
        now_ += absl::Seconds(1) / static_cast<int64_t>(per_second);
        for (int rank = 0; rank < 4; ++rank) {
          const uint32_t stands_for = sample_.Take(Mixed(1, operation), now_);
          if (stands_for == 0) continue;
          kept[operation] = stands_for;
          ++num_parts_;
        }
      }
    }
    return kept;
  }
  uint64_t num_parts() const { return num_parts_; }

 private:
  TraceSample sample_{kLimit};
  absl::Time now_ = absl::UnixEpoch();
  uint64_t next_ = 0;
  uint64_t num_parts_ = 0;
};

TEST(TraceSampleTest, AllAreKeptUpToTheLimit) {
  Load load;
  EXPECT_EQ(load.Run(kLimit / 5, 5).size(), kLimit / 5);
}

TEST(TraceSampleTest, AboveItOneOfAPowerOfTwoAndAsManyAsMayBe) {
  for (const uint64_t per_second : {300, 1000, 5000, 30'000}) {
    Load load;
    const std::map<uint64_t, uint32_t> kept = load.Run(per_second, 30);
    EXPECT_LE(load.num_parts(), kLimit * 3 / 2) << per_second;
    EXPECT_GE(load.num_parts(), kLimit / 8) << per_second;
    uint64_t stands_for = 0;
    for (const auto& [unused, one] : kept) stands_for += one;
    EXPECT_NEAR(static_cast<double>(stands_for), static_cast<double>(per_second),
                static_cast<double>(per_second) * 0.35);
  }
}

TEST(TraceSampleTest, WorkersKeepTheSameOperationsEachOfThemWhole) {
  Load busy;
  Load busier;
  const std::map<uint64_t, uint32_t> some = busy.Run(4000, 10);
  busier.Run(4000, 9);
  for (const auto& [operation, stands_for] : busier.Run(4000, 1)) {
    ASSERT_TRUE(some.contains(operation));
    EXPECT_EQ(some.at(operation), stands_for);
  }
  EXPECT_EQ(busy.num_parts() % 4, 0u);
}

TEST(TraceSampleTest, WhatIsKeptOfMoreIsAmongWhatIsKeptOfFewer) {
  TraceSample fewer{100};
  TraceSample more{1000};
  std::set<uint64_t> many;
  const auto at = [](uint64_t i) { return absl::UnixEpoch() + absl::Microseconds(100) * i; };
  for (uint64_t i = 0; i < 200'000; ++i) {
    if (more.Take(Mixed(1, i), at(i)) > 0 && i > 100'000) many.insert(i);
  }
  int num_few = 0;
  for (uint64_t i = 0; i < 200'000; ++i) {
    if (fewer.Take(Mixed(1, i), at(i)) == 0 || i <= 100'000) continue;
    ++num_few;
    EXPECT_TRUE(many.contains(i)) << i;
  }
  EXPECT_GT(num_few, 100);
  EXPECT_GT(many.size(), 2u * static_cast<size_t>(num_few));
}

TEST(TraceSampleTest, OnceThereAreFewAllAreKeptAgain) {
  Load load;
  load.Run(30'000, 10);
  EXPECT_EQ(load.Run(10, 12).size(), 10u);
}

TEST(TraceSampleTest, WithoutALimitAllAreKept) {
  TraceSample sample{0};
  for (uint64_t i = 0; i < 10'000; ++i) EXPECT_EQ(sample.Take(i, absl::UnixEpoch()), 1u);
}

}  // namespace
}  // namespace epd
