// Goal: messages name ranks in one form, and a unique id cannot be printed at all.
#include "daemon/core/rank_holder.h"

#include <gtest/gtest.h>

#include <ostream>
#include <type_traits>

#include "daemon/core/unique_id.h"

namespace epd {
namespace {

TEST(RankHolderTest, NamesRankHostPidAndPhase) {
  RankHolder holder;
  holder.rank = Rank{2};
  holder.host = "a7";
  holder.pid = 4711;
  EXPECT_EQ(Describe(holder, "arrived"), "rank=2 host=a7 pid=4711 phase=arrived");
}

TEST(RankHolderTest, RanksAreWrittenAsRanges) {
  EXPECT_EQ(DescribeRanks({}), "none");
  EXPECT_EQ(DescribeRanks({Rank{7}, Rank{0}, Rank{2}, Rank{1}, Rank{1}}), "0-2, 7");
}

template <typename T>
concept Printable = requires(std::ostream& out, const T& value) {
  out << value;
};

TEST(UniqueIdTest, HasNoPrintedForm) {
  static_assert(Printable<int>);
  static_assert(!Printable<UniqueId>);
  static_assert(!std::is_convertible_v<UniqueId, std::string>);
  EXPECT_EQ(UniqueId("abc"), UniqueId("abc"));
  EXPECT_FALSE(UniqueId("abc") == UniqueId("abd"));
}

}  // namespace
}  // namespace epd
