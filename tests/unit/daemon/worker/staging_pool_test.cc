// Goal: regions never overlap, costs add up, idle pages serve other sets, and a naive model agrees
// in random runs.
#include "daemon/worker/staging/staging_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace epd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint64_t kPage = 4096;
constexpr ArenaSetId kA{1}, kB{2};

TEST(StagingPoolTest, TakesTheLowestFreeRangeInAllArenas) {
  StagingPool pool(100 * kPage, kPage);
  ASSERT_TRUE(pool.AddSet(kA, 2, 16 * kPage).ok());
  EXPECT_EQ(pool.Allocate(kA, 1)->region, (Region{kA, 0, kPage}));
  EXPECT_EQ(pool.Allocate(kA, 2 * kPage)->region, (Region{kA, kPage, 2 * kPage}));
  EXPECT_EQ(pool.in_use_bytes(), 6 * kPage);
  ASSERT_TRUE(pool.Free(kA, 0).ok());
  EXPECT_EQ(pool.Allocate(kA, 2 * kPage)->region.offset, 3 * kPage);
  EXPECT_EQ(pool.Allocate(kA, kPage)->region.offset, 0u);
}

TEST(StagingPoolTest, SetsThatAreUsedInTurnNeedTheBudgetOfOne) {
  StagingPool pool(10 * kPage, kPage);
  for (uint64_t s = 1; s <= 64; ++s) {
    ASSERT_TRUE(pool.AddSet(ArenaSetId{s}, 1, 16 * kPage).ok());
    const auto got = pool.Allocate(ArenaSetId{s}, 8 * kPage);
    ASSERT_TRUE(got.ok()) << got.status();
    ASSERT_TRUE(pool.Free(ArenaSetId{s}, 0).ok());
  }
  EXPECT_LE(pool.peak_committed_bytes(), 10 * kPage);
  EXPECT_EQ(pool.peak_in_use_bytes(), 8 * kPage);
}

TEST(StagingPoolTest, TrimsOnlyWhatAnotherSetNeeds) {
  StagingPool pool(10 * kPage, kPage);
  ASSERT_TRUE(pool.AddSet(kA, 1, 16 * kPage).ok());
  ASSERT_TRUE(pool.AddSet(kB, 1, 16 * kPage).ok());
  ASSERT_TRUE(pool.Allocate(kA, 8 * kPage).ok());
  ASSERT_TRUE(pool.Free(kA, 0).ok());
  const auto got = pool.Allocate(kB, 5 * kPage);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_THAT(got->trims, ElementsAre(Trim{kA, 5 * kPage, 3 * kPage}));
}

TEST(StagingPoolTest, ExhaustionSaysAllNumbersAndChangesNothing) {
  StagingPool pool(10 * kPage, kPage);
  ASSERT_TRUE(pool.AddSet(kA, 2, 16 * kPage).ok());
  ASSERT_TRUE(pool.Allocate(kA, 4 * kPage).ok());
  const auto got = pool.Allocate(kA, 2 * kPage);
  EXPECT_EQ(got.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(got.status().message()), HasSubstr("budget 40960"));
  EXPECT_EQ(pool.in_use_bytes(), 8 * kPage);
  EXPECT_TRUE(pool.EverFits(kA, 5 * kPage));
  EXPECT_FALSE(pool.EverFits(kA, 6 * kPage));
  EXPECT_FALSE(pool.EverFits(kA, ~uint64_t{0}));
  EXPECT_EQ(pool.Allocate(kA, ~uint64_t{0}).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(StagingPoolTest, QuarantinedRegionsAreNeitherFreedNorReused) {
  StagingPool pool(10 * kPage, kPage);
  ASSERT_TRUE(pool.AddSet(kA, 1, 16 * kPage).ok());
  ASSERT_TRUE(pool.Allocate(kA, kPage).ok());
  ASSERT_TRUE(pool.Quarantine(kA, 0).ok());
  EXPECT_EQ(pool.Free(kA, 0).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(pool.RemoveSet(kA).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(pool.Allocate(kA, kPage)->region.offset, kPage);
  EXPECT_EQ(pool.Sets()[0].quarantined_bytes, kPage);
  ASSERT_TRUE(pool.Release(kA, 0).ok());
  EXPECT_EQ(pool.Allocate(kA, kPage)->region.offset, 0u);
  EXPECT_EQ(pool.Release(kA, 0).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(StagingPoolTest, WrongIdsAreErrors) {
  StagingPool pool(10 * kPage, kPage);
  EXPECT_EQ(pool.AddSet(kA, 0, kPage).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(pool.AddSet(kA, 1, kPage - 1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(pool.Allocate(kA, 1).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(pool.AddSet(kA, 1, kPage).ok());
  EXPECT_EQ(pool.AddSet(kA, 1, kPage).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(pool.Free(kA, 0).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(pool.Quarantine(kB, 0).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(pool.RemoveSet(kB).code(), absl::StatusCode::kNotFound);
}

// The naive model: one flag per page.
struct Model {
  std::vector<bool> used = std::vector<bool>(24, false);
  int num_arenas = 1;

  int LowestFit(uint64_t pages) const {
    for (size_t first = 0; first + pages <= used.size(); ++first) {
      bool free = true;
      for (size_t p = first; p < first + pages; ++p) free = free && !used[p];
      if (free) return static_cast<int>(first);
    }
    return -1;
  }
  uint64_t Cost() const { return std::count(used.begin(), used.end(), true) * num_arenas; }
};

TEST(StagingPoolTest, AgreesWithANaiveModelInRandomRuns) {
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    constexpr uint64_t kBudgetPages = 40;
    StagingPool pool(kBudgetPages * kPage, kPage);
    Model models[3];
    std::vector<Region> held;
    for (int s = 0; s < 3; ++s) {
      models[s].num_arenas = 1 + s;
      ASSERT_TRUE(pool.AddSet(ArenaSetId(s + 1), 1 + s, 24 * kPage).ok());
    }
    for (int step = 0; step < 400; ++step) {
      const int s = static_cast<int>(random() % 3);
      if (random() % 2 == 0) {
        const uint64_t pages = 1 + random() % 6;
        const int offset = models[s].LowestFit(pages);
        const auto got = pool.Allocate(ArenaSetId(s + 1), pages * kPage - random() % kPage);
        if (got.ok()) {
          ASSERT_EQ(got->region.offset, offset * kPage);
          for (uint64_t p = 0; p < pages; ++p) models[s].used[offset + p] = true;
          held.push_back(got->region);
        } else {
          // Refused only if the range is not there or what is in use, with the holes below, leaves
          // no room.
          ASSERT_EQ(got.status().code(), absl::StatusCode::kResourceExhausted);
          uint64_t highest = 0;
          for (int m = 0; m < 3; ++m) {
            const auto last = std::find(models[m].used.rbegin(), models[m].used.rend(), true);
            const uint64_t end = models[m].used.rend() - last;
            highest += (m == s ? std::max<uint64_t>(24, end) : end) * models[m].num_arenas;
          }
          ASSERT_TRUE(offset < 0 || highest > kBudgetPages);
        }
      } else if (!held.empty()) {
        const size_t i = random() % held.size();
        ASSERT_TRUE(pool.Free(held[i].set, held[i].offset).ok());
        Model& model = models[held[i].set.value - 1];
        for (uint64_t p = 0; p < held[i].bytes / kPage; ++p)
          model.used[held[i].offset / kPage + p] = false;
        held.erase(held.begin() + static_cast<long>(i));
      }
      ASSERT_TRUE(pool.CheckConsistent().ok()) << pool.CheckConsistent();
      ASSERT_EQ(pool.in_use_bytes(),
                (models[0].Cost() + models[1].Cost() + models[2].Cost()) * kPage);
      ASSERT_EQ(pool.Regions().size(), held.size());
    }
  }
}

}  // namespace
}  // namespace epd
