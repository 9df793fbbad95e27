// Goal: nothing that another thread asks of an election is lost or done after something newer, and
// its end ends every wait.
#include "daemon/store/election_inbox.h"

#include <thread>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace epd {
namespace {

using testing::SizeIs;

KeepRequest Request(int64_t revision) {
  return {revision, {}, [] {}};
}

TEST(ElectionInboxTest, TheNewestRequestToKeepIsTakenAndOnce) {
  ElectionInbox inbox;
  inbox.Keep(Request(1));
  inbox.Keep(Request(2));
  const std::optional<KeepRequest> taken = inbox.Take().keep;
  ASSERT_TRUE(taken.has_value());
  EXPECT_EQ(taken->revision, 2);
  EXPECT_FALSE(inbox.Take().keep.has_value());
}

TEST(ElectionInboxTest, WhatIsPutBackIsTriedAgainUnlessThereIsANewerOne) {
  ElectionInbox inbox;
  inbox.PutBack(Request(1));
  EXPECT_EQ(inbox.Take().keep->revision, 1);
  inbox.Keep(Request(2));
  inbox.PutBack(Request(1));
  EXPECT_EQ(inbox.Take().keep->revision, 2);
}

TEST(ElectionInboxTest, ToResignIsTakenOnce) {
  ElectionInbox inbox;
  inbox.Resign();
  inbox.Wait(absl::InfiniteDuration());
  EXPECT_TRUE(inbox.Take().resign);
  EXPECT_FALSE(inbox.Take().resign);
}

TEST(ElectionInboxTest, EveryRequestWakesAndEveryRefusalIsHeard) {
  ElectionInbox inbox;
  EXPECT_FALSE(inbox.Take().woken);
  inbox.Refuse({});
  inbox.Refuse({});
  inbox.Wait(absl::InfiniteDuration());
  const ElectionInbox::Taken taken = inbox.Take();
  EXPECT_TRUE(taken.woken);
  EXPECT_THAT(taken.refused, SizeIs(2));
  EXPECT_FALSE(inbox.Take().woken);
}

TEST(ElectionInboxTest, TheEndCancelsTheWatchAndEndsTheWaits) {
  ElectionInbox inbox;
  int cancelled = 0;
  ASSERT_TRUE(inbox.BeginWatch([&] { ++cancelled; }));
  std::thread waiting([&] { inbox.Wait(absl::InfiniteDuration()); });
  std::thread resting([&] { inbox.RestUntilStopped(absl::InfiniteDuration()); });
  inbox.Stop();
  waiting.join();
  resting.join();
  EXPECT_EQ(cancelled, 1);
  inbox.EndWatch();
  EXPECT_FALSE(inbox.BeginWatch([] {}));
  EXPECT_TRUE(inbox.stopping());
}

}  // namespace
}  // namespace epd
