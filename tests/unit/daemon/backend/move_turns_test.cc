// Goal: large moves go on user by user, of a user group by group, and of a group in order.
#include "daemon/backend/cpu/move_turns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace epd {
namespace {

using ::testing::ElementsAre;

std::vector<MoveId> Take(MoveTurns& turns, int count) {
  std::vector<MoveId> taken;
  for (int i = 0; i < count; ++i) taken.push_back(turns.Next());
  return taken;
}

TEST(MoveTurnsTest, AUserWithManyGroupsHasOneTurnInARound) {
  MoveTurns turns;
  for (MoveId id : {11, 12, 13}) turns.Add(id, 1001, id);
  turns.Add(21, 1002, 7);
  EXPECT_THAT(Take(turns, 6), ElementsAre(11, 21, 12, 21, 13, 21));
}

TEST(MoveTurnsTest, OfAGroupTheOldestGoesOnUntilItIsRemoved) {
  MoveTurns turns;
  for (MoveId id : {5, 3, 4}) turns.Add(id, 0, 1);
  EXPECT_THAT(Take(turns, 2), ElementsAre(5, 5));
  EXPECT_TRUE(turns.Remove(5));
  EXPECT_THAT(Take(turns, 2), ElementsAre(3, 3));
}

TEST(MoveTurnsTest, AUsersGroupsHaveTheSameTurnsHoweverManyMovesEachHas) {
  MoveTurns turns;
  for (MoveId id : {1, 2, 3}) turns.Add(id, 1001, 1);
  turns.Add(4, 1001, 2);
  EXPECT_THAT(Take(turns, 4), ElementsAre(1, 4, 1, 4));
}

TEST(MoveTurnsTest, OneThatIsRemovedHasNoTurnAndOthersKeepTheirs) {
  MoveTurns turns;
  turns.Add(1, 1001, 1);
  turns.Add(2, 1001, 1);
  turns.Add(3, 1002, 1);
  EXPECT_TRUE(turns.Remove(2));
  EXPECT_FALSE(turns.Remove(2));
  EXPECT_THAT(Take(turns, 2), ElementsAre(1, 3));
  EXPECT_TRUE(turns.Remove(1));
  EXPECT_TRUE(turns.Remove(3));
  EXPECT_TRUE(turns.empty());
}

// Its groups are others each time, with ids that only grow.
TEST(MoveTurnsTest, AUserWhoseGroupsComeAndGoKeepsNobodysTurn) {
  MoveTurns turns;
  turns.Add(1, 1002, 1);
  int num_turns = 0;
  for (MoveId id = 2; id < 100; id += 2) {
    turns.Add(id, 1001, id);
    turns.Add(id + 1, 1001, id + 1);
    num_turns += turns.Next() == 1;
    turns.Remove(id);
  }
  EXPECT_GE(num_turns, 24);
}

}  // namespace
}  // namespace epd
