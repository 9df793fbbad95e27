// Goal: numbers in tables are short, unambiguous and never wrong by a unit.
#include "client/cli/human.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace epd::cli {
namespace {

TEST(HumanBytesTest, UsesTheLargestBinaryUnitBelowTheValue) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1024), "1.0 KiB");
  EXPECT_EQ(HumanBytes(1536), "1.5 KiB");
  EXPECT_EQ(HumanBytes(uint64_t{24} << 30), "24.0 GiB");
  EXPECT_EQ(HumanBytes(std::numeric_limits<uint64_t>::max()), "16.0 EiB");
}

TEST(HumanBytesTest, NeverShows1024OfAUnit) { EXPECT_EQ(HumanBytes((1 << 20) - 1), "1.0 MiB"); }

TEST(HumanDurationTest, ShowsTheTwoLargestUnits) {
  EXPECT_EQ(HumanDuration(absl::Milliseconds(4)), "4ms");
  EXPECT_EQ(HumanDuration(absl::Seconds(59)), "59s");
  EXPECT_EQ(HumanDuration(absl::Seconds(75)), "1m15s");
  EXPECT_EQ(HumanDuration(absl::Hours(25)), "1d1h");
  EXPECT_EQ(HumanDuration(absl::Hours(24) + absl::Seconds(5)), "1d");
}

TEST(HumanDurationTest, ANegativeTimeReadsAsZero) {
  EXPECT_EQ(HumanDuration(-absl::Seconds(3)), "0s");
}

TEST(HumanCountTest, GroupsThreeDigits) {
  EXPECT_EQ(HumanCount(0), "0");
  EXPECT_EQ(HumanCount(999), "999");
  EXPECT_EQ(HumanCount(1000), "1,000");
  EXPECT_EQ(HumanCount(12345678), "12,345,678");
}

TEST(HumanRangesTest, JoinsNeighbours) {
  EXPECT_EQ(HumanRanges({}), "-");
  EXPECT_EQ(HumanRanges({5}), "5");
  EXPECT_EQ(HumanRanges({0, 1, 2, 3, 7, 9, 10}), "0-3,7,9-10");
}

TEST(ShortenedTest, CutsOnlyWhatIsTooLongAndNeverACharacter) {
  EXPECT_EQ(Shortened("12345678", 8), "12345678");
  EXPECT_EQ(Shortened("123456789", 8), "12345...");
  EXPECT_EQ(Shortened("1234\xC3\xA9"
                      "789",
                      8),
            "1234...");
}

}  // namespace
}  // namespace epd::cli
