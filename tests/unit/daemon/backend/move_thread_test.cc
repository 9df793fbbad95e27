// Goal: moves on a thread of their own end each once, part by part in turn, and none goes on after the end.
#include "daemon/backend/cpu/move_thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "tests/fakes/failing_threads.h"

namespace epd {
namespace {

using ::testing::ElementsAre;

constexpr uint32_t kUid = 1001;
constexpr uint32_t kOtherUid = 1002;

// Until all have ended.
std::vector<MovedRows> TakeAll(MoveThread& moves) {
  std::vector<MovedRows> all;
  while (moves.busy()) {
    for (MovedRows& one : moves.TakeMoved()) all.push_back(std::move(one));
    absl::SleepFor(absl::Microseconds(100));
  }
  return all;
}

std::vector<MoveId> IdsOf(const std::vector<MovedRows>& moved) {
  std::vector<MoveId> ids;
  for (const MovedRows& one : moved) ids.push_back(one.id);
  return ids;
}

// Of so many parts.
MoveThread::Move Parts(int count) {
  return [left = std::make_shared<int>(count)]() -> std::optional<absl::Status> {
    if (--*left > 0) return std::nullopt;
    return absl::OkStatus();
  };
}

// Keeps the thread until `all_are_there`.
MoveThread::Move Gate(absl::Notification& all_are_there) {
  return [&all_are_there] {
    all_are_there.WaitForNotification();
    return absl::OkStatus();
  };
}

TEST(MoveThreadTest, EachEndsOnceWithItsStatus) {
  MoveThread moves;
  EXPECT_FALSE(moves.busy());
  moves.Add(1, kUid, 7, Parts(3));
  moves.Add(2, kUid, 7, [] { return absl::DataLossError("damaged"); });
  const std::vector<MovedRows> moved = TakeAll(moves);
  ASSERT_EQ(moved.size(), 2u);
  EXPECT_EQ(moved[0].id, 1u);
  EXPECT_EQ(moved[1].status, absl::DataLossError("damaged"));
  EXPECT_THAT(moves.TakeMoved(), ::testing::IsEmpty());
}

TEST(MoveThreadTest, AUserWaitsForOnePartOfEachOther) {
  MoveThread moves(absl::ZeroDuration());
  absl::Notification all_are_there;
  moves.Add(0, kUid, 1, Gate(all_are_there));
  moves.Add(1, kUid, 2, Parts(1000));
  moves.Add(2, kUid, 3, Parts(1000));
  moves.Add(3, kOtherUid, 4, Parts(3));
  moves.Add(4, kOtherUid, 4, Parts(1));
  all_are_there.Notify();
  EXPECT_THAT(IdsOf(TakeAll(moves)), ElementsAre(0, 3, 4, 1, 2));
}

TEST(MoveThreadTest, AMoveGoesOnForAsLongAsATurnLasts) {
  MoveThread moves(absl::Hours(1));
  absl::Notification all_are_there;
  moves.Add(0, kUid, 1, Gate(all_are_there));
  moves.Add(1, kOtherUid, 2, Parts(1000));
  moves.Add(2, kUid, 3, Parts(1));
  all_are_there.Notify();
  EXPECT_THAT(IdsOf(TakeAll(moves)), ElementsAre(0, 1, 2));
}

TEST(MoveThreadTest, OneThatIsCancelledEndsAfterThePartThatItIsAt) {
  MoveThread moves(absl::ZeroDuration());
  std::atomic<int> parts = 0;
  absl::Notification begun;
  absl::Notification is_cancelled;
  moves.Add(1, kUid, 1, [&]() -> std::optional<absl::Status> {
    if (parts++ == 0) begun.Notify();
    is_cancelled.WaitForNotification();
    return std::nullopt;
  });
  moves.Add(2, kUid, 1, Parts(1));
  moves.Add(3, kUid, 1, Parts(1));
  begun.WaitForNotification();
  moves.Cancel(1);
  moves.Cancel(3);
  is_cancelled.Notify();
  const std::vector<MovedRows> moved = TakeAll(moves);
  EXPECT_THAT(IdsOf(moved), ElementsAre(1, 3, 2));
  EXPECT_EQ(moved[0].status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(moved[1].status.code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(moved[2].status.ok());
  EXPECT_EQ(parts, 1);
  moves.Cancel(2);
  EXPECT_FALSE(moves.busy());
}

TEST(MoveThreadTest, OneThatIsDoneBeforeItHearsOfItsCancelEndsOnce) {
  MoveThread moves;
  absl::Notification begun;
  absl::Notification is_cancelled;
  moves.Add(1, kUid, 1, [&] {
    begun.Notify();
    is_cancelled.WaitForNotification();
    return absl::OkStatus();
  });
  begun.WaitForNotification();
  moves.Cancel(1);
  moves.Add(2, kUid, 1, Parts(1));
  is_cancelled.Notify();
  EXPECT_THAT(IdsOf(TakeAll(moves)), ElementsAre(1, 2));
}

TEST(MoveThreadTest, TheEndWaitsForThePartThatGoesOnAndLetsNoOtherBegin) {
  std::atomic<bool> ended = false;
  std::atomic<int> others = 0;
  absl::Notification begun;
  MoveThread moves(absl::ZeroDuration());
  moves.Add(1, kUid, 1, [&]() -> std::optional<absl::Status> {
    if (ended) ++others;
    if (!begun.HasBeenNotified()) begun.Notify();
    absl::SleepFor(absl::Milliseconds(50));
    ended = true;
    return std::nullopt;
  });
  moves.Add(2, kUid, 1, [&] {
    ++others;
    return absl::OkStatus();
  });
  begun.WaitForNotification();
  moves.End();
  EXPECT_TRUE(ended);
  EXPECT_EQ(others, 0);
  moves.End();
}

TEST(MoveThreadTest, WithoutAThreadAMoveFailsAndTheNextTriesAgain) {
  epd::testing::g_threads_left = 0;
  MoveThread moves;
  moves.Add(1, kUid, 7, Parts(1));
  epd::testing::g_threads_left = -1;
  std::vector<MovedRows> moved = TakeAll(moves);
  ASSERT_EQ(moved.size(), 1u);
  EXPECT_TRUE(absl::IsResourceExhausted(moved[0].status)) << moved[0].status;
  EXPECT_THAT(std::string(moved[0].status.message()),
              ::testing::HasSubstr("no thread 'epd-moves'"));
  moves.Add(2, kUid, 7, Parts(1));
  moved = TakeAll(moves);
  ASSERT_EQ(moved.size(), 1u);
  EXPECT_EQ(moved[0].id, 2u);
  EXPECT_TRUE(moved[0].status.ok());
}

}  // namespace
}  // namespace epd
