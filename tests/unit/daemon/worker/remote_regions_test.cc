// Goal: rows from another node are written where they belong and nowhere else, and who says two totals is refused.
#include "daemon/worker/peer_streams/remote_regions.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace epd {
namespace {

using Outcome = RemoteRegions::Outcome;

constexpr Incarnation kServer(7);

class LandingTest : public testing::Test {
 protected:
  LandingTest() {
    remote_regions_.Open(operation_, sizeof region_, {{Rank(1), {region_, kServer}}});
  }

  Outcome Land(uint64_t total, std::vector<RowsPiece> pieces, const std::string& bytes,
               uint32_t rank = 1, Incarnation from = kServer) {
    RowsFrame frame;
    frame.group = frame.formation = frame.number = 1;
    frame.rank = rank;
    frame.total = total;
    frame.num_pieces = static_cast<uint32_t>(pieces.size());
    return remote_regions_.Land(from, frame, pieces, {{bytes.data(), bytes.size()}});
  }

  const PeerOperation operation_{GroupId(1), Formation(1), 1};
  RemoteRegions remote_regions_;
  char region_[16] = "...............";
};

TEST_F(LandingTest, PiecesLandWhereTheyBelongAndTheLastByteCompletes) {
  EXPECT_EQ(Land(6, {{2, 3}}, "abc"), Outcome::kMore);
  EXPECT_EQ(Land(6, {{9, 1}, {12, 2}}, "def"), Outcome::kComplete);
  EXPECT_STREQ(region_, "..abc....d..ef.");
}

TEST_F(LandingTest, NothingIsWrittenOutsideOfTheRegion) {
  EXPECT_EQ(Land(17, {{0, 17}}, std::string(17, 'x')), Outcome::kBad);
  EXPECT_EQ(Land(4, {{14, 4}}, "xxxx"), Outcome::kBad);
  EXPECT_EQ(Land(4, {{UINT64_MAX, 2}}, "xx"), Outcome::kBad);
  EXPECT_EQ(Land(4, {{0, UINT64_MAX}}, "xx"), Outcome::kBad);
  EXPECT_EQ(Land(4, {{0, 4}}, "xxxx", /*rank=*/2), Outcome::kBad);
  EXPECT_STREQ(region_, "...............");
}

TEST_F(LandingTest, RowsOfARankComeFromTheWorkerThatServesItAlone) {
  EXPECT_EQ(Land(3, {{0, 3}}, "xxx", /*rank=*/1, Incarnation(8)), Outcome::kForeign);
  EXPECT_STREQ(region_, "...............");
  EXPECT_EQ(Land(3, {{0, 3}}, "abc"), Outcome::kComplete);
}

TEST_F(LandingTest, MoreThanWasSaidIsRefusedAndSoIsASecondTotalThatIsLess) {
  EXPECT_EQ(Land(2, {{0, 3}}, "xxx"), Outcome::kBad);
  EXPECT_EQ(Land(6, {{0, 4}}, "abcd"), Outcome::kMore);
  EXPECT_EQ(Land(6, {{4, 3}}, "efg"), Outcome::kBad);
  EXPECT_EQ(Land(3, {}, ""), Outcome::kBad);
  EXPECT_EQ(Land(3, {{4, 8}}, "efghijkl"), Outcome::kBad);
  EXPECT_STREQ(region_, "abcd...........");
}

TEST_F(LandingTest, AfterTheEndRowsAreDropped) {
  remote_regions_.Close(operation_);
  EXPECT_EQ(Land(2, {{0, 2}}, "xx"), Outcome::kDropped);
  EXPECT_STREQ(region_, "...............");
}

}  // namespace
}  // namespace epd
