// Goal: what ranks of one other worker write lands in one arena where all sessions here take such, each rank in its part, and
// groups share arenas only if they have the same of them.
#include <gmock/gmock.h>

#include "tests/unit/daemon/worker/exchange_harness.h"

namespace epd {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

// Ranks 0 and 3 are here, the others on the nodes of `others`.
struct Placed {
  GroupId group = kGroup;
  bool landing_arenas = true;
  std::vector<std::string> others = {"b", "c", "b", "c"};  // Of ranks 1, 2, 4 and 5.
};

class ExchangeLandingArenasTest : public ::testing::Test {
 protected:
  // Starts the tenant, and says which arenas were made for it; nothing if it shares those of another one.
  std::vector<CreateArenas> Start(const Placed& placed) {
    TenantStart start = h_.Start(ExchangeHarness::Spec(6), placed.group);
    start.landing_arenas = placed.landing_arenas;
    start.nodes = {{NodeId{"a"}, Incarnation(7), "a:1", {}},
                   {NodeId{"b"}, Incarnation(8), "b:1", {}},
                   {NodeId{"c"}, Incarnation(9), "c:1", {}}};
    size_t next = 0;
    for (RankHolder& member : start.members) {
      const bool here = member.rank.value % 3 == 0;
      member.node = NodeId{here ? "a" : placed.others[next++]};
      if (!here) member.session = SessionId();
    }
    EXPECT_TRUE(h_.exchange.StartTenant(std::move(start), h_.now).ok());
    std::vector<CreateArenas> made;
    for (const Effect& effect : h_.exchange.TakeEffects()) {
      if (const auto* create = std::get_if<CreateArenas>(&effect)) made.push_back(*create);
    }
    return made;
  }

  ExchangeHarness h_{{.staging_bytes = kPool, .self = Incarnation(7)}};
};

TEST_F(ExchangeLandingArenasTest, ThereIsOneForEachOtherWorker) {
  const std::vector<CreateArenas> made = Start({});
  ASSERT_EQ(made.size(), 1u);
  EXPECT_EQ(made[0].num_arenas, 6) << "staging is counted by rank all the same";
  EXPECT_THAT(made[0].landing_of_arena, ElementsAre(-1, 0, 1, -1, 0, 1));
}

TEST_F(ExchangeLandingArenasTest, ThereIsNoneWhereASessionHereDoesNotTakeThem) {
  const std::vector<CreateArenas> made = Start({.landing_arenas = false});
  ASSERT_EQ(made.size(), 1u);
  EXPECT_THAT(made[0].landing_of_arena, Each(-1));
}

TEST_F(ExchangeLandingArenasTest, GroupsOfTheSameSessionsShareArenasIfTheirRanksLandInTheSameOnes) {
  EXPECT_EQ(Start({.group = GroupId(1)}).size(), 1u);
  EXPECT_EQ(Start({.group = GroupId(2)}).size(), 0u);
  EXPECT_EQ(Start({.group = GroupId(3), .others = {"b", "b", "c", "c"}}).size(), 1u)
      << "its parts are others";
  EXPECT_EQ(Start({.group = GroupId(4), .landing_arenas = false}).size(), 1u);
  EXPECT_EQ(
      Start({.group = GroupId(5), .landing_arenas = false, .others = {"b", "b", "c", "c"}}).size(),
      0u)
      << "an arena for each rank holds any rank's rows";
}

}  // namespace
}  // namespace epd
