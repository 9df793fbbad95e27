// Goal: the loop runs what is ready and what was posted, wakes at its deadline, and is never
// flooded.
#include "daemon/node/loop/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace epd {
namespace {

using testing::ElementsAre;

UniqueFd ReadyEvent() { return UniqueFd(eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK)); }

TEST(EventLoopTest, PostedWorkRunsInOrderOnTheLoopsThread) {
  EventLoop loop;
  std::vector<int> ran;
  std::thread::id where;
  std::thread poster([&] {
    loop.Post([&] { ran.push_back(1); });
    loop.Post([&] {
      ran.push_back(2);
      where = std::this_thread::get_id();
    });
  });
  poster.join();
  loop.RunOnce(absl::InfiniteFuture());
  EXPECT_THAT(ran, ElementsAre(1, 2));
  EXPECT_EQ(where, std::this_thread::get_id());
}

TEST(EventLoopTest, WorkPostedByWorkWaitsForTheNextTurn) {
  EventLoop loop;
  int ran = 0;
  loop.Post([&] {
    ++ran;
    loop.Post([&] { ++ran; });
  });
  loop.RunOnce(absl::InfiniteFuture());
  EXPECT_EQ(ran, 1);
  loop.RunOnce(absl::InfiniteFuture());
  EXPECT_EQ(ran, 2);
}

TEST(EventLoopTest, RequestsAreBoundedAndToldSo) {
  EventLoop loop(/*max_requests=*/2);
  EXPECT_TRUE(loop.PostRequest([] {}).ok());
  EXPECT_TRUE(loop.PostRequest([] {}).ok());
  const absl::Status refused = loop.PostRequest([] {});
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.message(), "epd is overloaded: 2 requests wait, its limit; retry later");
  loop.RunOnce(MonotonicNow());
  EXPECT_TRUE(loop.PostRequest([] {}).ok());
  loop.ClosePosts();
  EXPECT_EQ(loop.PostRequest([] {}).code(), absl::StatusCode::kUnavailable);
}

// A coordinator's stream that ended, or an election that was won, is said once.
TEST(EventLoopTest, WhatHasHappenedIsNeverRefused) {
  EventLoop loop(/*max_requests=*/1);
  ASSERT_TRUE(loop.PostRequest([] {}).ok());
  constexpr int kNews = 10'000;
  int heard = 0;
  for (int i = 0; i < kNews; ++i) {
    loop.Post([&heard, i] {
      if (heard == i) ++heard;
    });
  }
  loop.RunOnce(MonotonicNow());
  EXPECT_EQ(heard, kNews);
}

TEST(EventLoopTest, ReturnsAtItsDeadlineAndNotBefore) {
  EventLoop loop;
  const absl::Time deadline = MonotonicNow() + absl::Milliseconds(20);
  loop.RunOnce(deadline);
  EXPECT_GE(MonotonicNow(), deadline);
}

TEST(EventLoopTest, HandlerMayRemoveItselfAndOthersOfTheSameTurn) {
  EventLoop loop;
  const UniqueFd a = ReadyEvent();
  const UniqueFd b = ReadyEvent();
  int ran = 0;
  const auto remove_both = [&](uint32_t) {
    ++ran;
    loop.Remove(a.get());
    loop.Remove(b.get());
  };
  ASSERT_TRUE(loop.Add(a.get(), EPOLLIN, remove_both).ok());
  ASSERT_TRUE(loop.Add(b.get(), EPOLLIN, remove_both).ok());
  loop.RunOnce(MonotonicNow());
  loop.RunOnce(MonotonicNow());
  EXPECT_EQ(ran, 1);
}

TEST(EventLoopTest, EventOfAClosedDescriptorNeverReachesItsSuccessorOfTheSameNumber) {
  EventLoop loop;
  UniqueFd a = ReadyEvent();
  UniqueFd b = ReadyEvent();
  int old_ran = 0;
  int new_ran = 0;
  UniqueFd successor;
  const auto replace = [&](UniqueFd& other) {
    ++old_ran;
    loop.Remove(other.get());
    other.reset();
    successor.reset(eventfd(0, EFD_CLOEXEC));
    ASSERT_TRUE(loop.Add(successor.get(), EPOLLIN, [&](uint32_t) { ++new_ran; }).ok());
  };
  ASSERT_TRUE(loop.Add(a.get(), EPOLLIN, [&](uint32_t) { replace(b); }).ok());
  ASSERT_TRUE(loop.Add(b.get(), EPOLLIN, [&](uint32_t) { replace(a); }).ok());
  loop.RunOnce(MonotonicNow());
  EXPECT_EQ(old_ran, 1);
  EXPECT_EQ(new_ran, 0) << "its event was that of the closed one";
}

}  // namespace
}  // namespace epd
