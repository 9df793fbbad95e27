// Goal: moves on a thread of their own end each once, in turn, and none begins after the end.
#include "daemon/backend/cpu/move_thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

namespace epd {
namespace {

using testing::ElementsAre;

// Until all have ended.
std::vector<MovedRows> TakeAll(MoveThread& moves) {
  std::vector<MovedRows> all;
  while (moves.busy()) {
    for (MovedRows& one : moves.TakeMoved()) all.push_back(std::move(one));
    absl::SleepFor(absl::Microseconds(100));
  }
  return all;
}

TEST(MoveThreadTest, EachEndsOnceWithItsStatus) {
  MoveThread moves;
  EXPECT_FALSE(moves.busy());
  moves.Add(1, 7, [] { return absl::OkStatus(); });
  moves.Add(2, 7, [] { return absl::DataLossError("damaged"); });
  const std::vector<MovedRows> moved = TakeAll(moves);
  ASSERT_EQ(moved.size(), 2u);
  EXPECT_EQ(moved[0].id, 1u);
  EXPECT_EQ(moved[1].status, absl::DataLossError("damaged"));
  EXPECT_THAT(moves.TakeMoved(), testing::IsEmpty());
}

TEST(MoveThreadTest, AGroupWaitsForOneMoveOfEachOther) {
  MoveThread moves;
  absl::Notification all_are_there;
  moves.Add(0, 1, [&] {
    all_are_there.WaitForNotification();
    return absl::OkStatus();
  });
  for (MoveId id : {1, 2, 3}) moves.Add(id, 1, [] { return absl::OkStatus(); });
  moves.Add(21, 2, [] { return absl::OkStatus(); });
  moves.Add(31, 3, [] { return absl::OkStatus(); });
  moves.Add(22, 2, [] { return absl::OkStatus(); });
  all_are_there.Notify();
  std::vector<MoveId> order;
  for (const MovedRows& one : TakeAll(moves)) order.push_back(one.id);
  EXPECT_THAT(order, ElementsAre(0, 21, 31, 1, 22, 2, 3));
}

TEST(MoveThreadTest, TheEndWaitsForTheMoveThatGoesOnAndLetsNoOtherBegin) {
  std::atomic<bool> ended = false;
  std::atomic<int> others = 0;
  absl::Notification begun;
  MoveThread moves;
  moves.Add(1, 1, [&] {
    begun.Notify();
    absl::SleepFor(absl::Milliseconds(50));
    ended = true;
    return absl::OkStatus();
  });
  moves.Add(2, 1, [&] {
    ++others;
    return absl::OkStatus();
  });
  begun.WaitForNotification();
  moves.End();
  EXPECT_TRUE(ended);
  EXPECT_EQ(others, 0);
  moves.End();
}

}  // namespace
}  // namespace epd
