// Goal: however many sessions a user has and however often they come back, another one's turn is the next but one, and of a
// user's sessions each has its turn before one has two.
#include "daemon/core/session_turns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace epd {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr uint32_t kAlice = 1000;
constexpr uint32_t kBob = 1001;

// `max` turns at most.
std::vector<uint64_t> Take(SessionTurns& turns, int max = 1000) {
  std::vector<uint64_t> out;
  turns.BeginTurn();
  while (max-- > 0) {
    const std::optional<SessionId> next = turns.Next();
    if (!next.has_value()) break;
    out.push_back(next->value);
  }
  return out;
}

void AddMany(SessionTurns& turns, uint64_t first, uint64_t last, uint32_t uid) {
  for (uint64_t id = first; id <= last; ++id) turns.Add(SessionId(id), uid);
}

TEST(SessionTurnsTest, EachSessionHasATurn) {
  SessionTurns turns;
  EXPECT_TRUE(turns.empty());
  EXPECT_THAT(Take(turns), IsEmpty());
  AddMany(turns, 1, 3, kAlice);
  Take(turns);
  EXPECT_THAT(Take(turns), ElementsAre(1, 2, 3));
  EXPECT_TRUE(turns.Has(SessionId(2)));
  turns.Remove(SessionId(2));
  EXPECT_FALSE(turns.Has(SessionId(2)));
  EXPECT_THAT(Take(turns), ElementsAre(1, 3));
}

TEST(SessionTurnsTest, AUsersOneSessionComesAfterOneOfAnotherWhoHasForty) {
  SessionTurns turns;
  AddMany(turns, 1, 40, kAlice);
  turns.Add(SessionId(41), kBob);
  for (int round = 0; round < 50; ++round) {
    const std::vector<uint64_t> first = Take(turns, 2);
    EXPECT_TRUE(first[0] == 41 || first[1] == 41) << first[0] << " " << first[1];
  }
}

TEST(SessionTurnsTest, WhoComesBackAtOnceWaitsForTheOthersOfHisUser) {
  SessionTurns turns;
  AddMany(turns, 1, 40, kAlice);
  std::vector<int> num_turns(41);
  for (int i = 0; i < 400; ++i) {
    // A turn that is over after one session, which has another message.
    const uint64_t id = Take(turns, 1).at(0);
    ++num_turns[id];
    turns.Remove(SessionId(id));
    turns.Add(SessionId(id), kAlice);
  }
  for (uint64_t id = 1; id <= 40; ++id) EXPECT_EQ(num_turns[id], 10) << id;
}

TEST(SessionTurnsTest, NewSessionsKeepTheRoundFromNobody) {
  SessionTurns turns;
  AddMany(turns, 1, 8, kAlice);
  uint64_t newest = 8;
  int since_first = 0;
  for (int i = 0; i < 200; ++i) {
    const uint64_t id = Take(turns, 1).at(0);
    since_first = id == 1 ? 0 : since_first + 1;
    ASSERT_LE(since_first, 2 * 8) << i;
    if (id != 1) turns.Remove(SessionId(id));  // It goes, and another one comes.
    if (id != 1) turns.Add(SessionId(++newest), kAlice);
  }
}

TEST(SessionTurnsTest, SessionsMayGoDuringATurn) {
  SessionTurns turns;
  AddMany(turns, 1, 3, kAlice);
  AddMany(turns, 4, 5, kBob);
  turns.BeginTurn();
  ASSERT_TRUE(turns.Next().has_value());
  for (uint64_t id = 1; id <= 4; ++id) turns.Remove(SessionId(id));
  for (std::optional<SessionId> next = turns.Next(); next.has_value(); next = turns.Next())
    EXPECT_EQ(next->value, 5u);
  turns.Remove(SessionId(5));
  EXPECT_TRUE(turns.empty());
  EXPECT_FALSE(turns.Next().has_value());
}

TEST(SessionTurnsTest, TheLastOfAllUsersIsFollowedByTheFirst) {
  SessionTurns turns;
  turns.Add(SessionId(1), UINT32_MAX);
  turns.Add(SessionId(2), 0);
  EXPECT_NE(Take(turns, 1), Take(turns, 1));
}

}  // namespace
}  // namespace epd
