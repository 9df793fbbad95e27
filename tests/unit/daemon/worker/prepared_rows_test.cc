// Goal: each worker is told, pair by pair, what the others have for its ranks, and where one does not say it nobody is.
#include "daemon/worker/engine/prepared_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace epd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr Incarnation kA(7);
constexpr Incarnation kB(3);

TenantPeers PeersOf(std::vector<Incarnation> node_of_rank) {
  TenantPeers peers;
  peers.node_of_rank = std::move(node_of_rank);
  return peers;
}

TEST(PreparedRowsTest, EachWorkerIsToldWhatAllHaveForItsRanks) {
  // By source and destination.
  const PreparedWorkers prepared = {{kA, {1, {0, 1, 2, 20, 21, 22}}}, {kB, {1, {10, 11, 12}}}};
  EXPECT_THAT(TokensFrom(PeersOf({kA, kB, kA}), prepared),
              UnorderedElementsAre(Pair(kA, ElementsAre(0, 2, 10, 12, 20, 22)),
                                   Pair(kB, ElementsAre(1, 11, 21))));
}

TEST(PreparedRowsTest, NobodyIsToldWhereOneSaysNothingOrOfOtherRanks) {
  const TenantPeers peers = PeersOf({kA, kB, kA});
  const std::vector<uint32_t> six = {0, 1, 2, 20, 21, 22};
  EXPECT_THAT(TokensFrom(peers, {}), IsEmpty());
  EXPECT_THAT(TokensFrom(peers, {{kA, {1, six}}}), IsEmpty());
  EXPECT_THAT(TokensFrom(peers, {{kA, {1, {}}}, {kB, {1, {}}}}), IsEmpty()) << "as of a gather";
  EXPECT_THAT(TokensFrom(peers, {{kA, {1, six}}, {kB, {1, {}}}}), IsEmpty());
  EXPECT_THAT(TokensFrom(peers, {{kA, {1, six}}, {kB, {1, {10, 11}}}}), IsEmpty());
  EXPECT_THAT(TokensFrom(peers, {{kA, {1, six}}, {kB, {1, {10, 11, 12, 13}}}}), IsEmpty());
  EXPECT_THAT(TokensFrom(peers, {{kA, {1, {0, 1, 2}}}, {kB, {1, six}}}), IsEmpty());
}

}  // namespace
}  // namespace epd
