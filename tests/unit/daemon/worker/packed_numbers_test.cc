// Goal: what was set is what stands there, in as few bytes as the numbers are apart.
#include "daemon/worker/engine/packed_numbers.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tests/seed/seed.h"

namespace epd {
namespace {

constexpr uint32_t kRanks = 240;

TEST(PackedNumbersTest, RanksInStepTakeAByteEach) {
  PackedNumbers numbers(kRanks);
  EXPECT_EQ(numbers.bytes(), 0u);
  for (uint64_t execution = 1; execution < 10'000; ++execution) {
    for (uint32_t rank = 0; rank < kRanks; ++rank) numbers.Set(rank, execution);
    ASSERT_LE(numbers.bytes(), kRanks) << execution;
  }
}

TEST(PackedNumbersTest, OneThatIsFarAheadMakesAllWider) {
  PackedNumbers numbers(kRanks);
  EXPECT_EQ(numbers.BytesWith(3, 256), 2 * kRanks);
  numbers.Set(3, 256);
  EXPECT_EQ(numbers.bytes(), 2 * kRanks);
  numbers.Set(3, uint64_t{1} << 62);
  EXPECT_EQ(numbers.bytes(), 8 * kRanks);
  EXPECT_EQ(numbers.At(3), uint64_t{1} << 62);
  EXPECT_EQ(numbers.At(4), 0u);
}

TEST(PackedNumbersTest, AnyNumbersStandWhereTheyWereSet) {
  std::mt19937_64 random(testing::TestSeed());
  for (int round = 0; round < 200; ++round) {
    const auto size = static_cast<uint32_t>(1 + random() % 9);
    std::vector<uint64_t> expected(size);
    PackedNumbers numbers(size);
    for (int i = 0; i < 200; ++i) {
      const auto at = static_cast<uint32_t>(random() % size);
      expected[at] = random() >> (random() % 64);
      const size_t foretold = numbers.BytesWith(at, expected[at]);
      numbers.Set(at, expected[at]);
      ASSERT_EQ(numbers.bytes(), foretold);
      for (uint32_t r = 0; r < size; ++r) ASSERT_EQ(numbers.At(r), expected[r]);
      const PackedNumbers packed = PackedNumbers::Of(expected);
      for (uint32_t r = 0; r < size; ++r) ASSERT_EQ(packed.At(r), expected[r]);
    }
  }
}

}  // namespace
}  // namespace epd
