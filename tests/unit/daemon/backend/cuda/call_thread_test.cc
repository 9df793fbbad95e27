// Goal: a call that blocks for ever holds nobody up: not who polls for it, and not who goes without it.
#include "daemon/backend/cuda/members/call_thread.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>

#include "tests/fakes/failing_threads.h"

namespace epd::cuda {
namespace {

absl::Status WaitFor(CallThread& thread) {
  for (;;) {
    if (std::optional<absl::Status> done = thread.Take()) return *done;
    usleep(1000);
  }
}

TEST(CallThreadTest, GivesEachResultOnceAndInOrder) {
  CallThread thread;
  EXPECT_EQ(thread.Take(), std::nullopt);
  thread.Post([] { return absl::OkStatus(); });
  EXPECT_TRUE(thread.open());
  EXPECT_EQ(WaitFor(thread), absl::OkStatus());
  EXPECT_FALSE(thread.open());
  EXPECT_EQ(thread.Take(), std::nullopt);
  thread.Post([] { return absl::AbortedError("second"); });
  EXPECT_EQ(WaitFor(thread), absl::AbortedError("second"));
}

TEST(CallThreadTest, ACallThatNeverReturnsIsLeftBehind) {
  auto entered = std::make_shared<std::atomic<bool>>(false);
  {
    CallThread thread;
    thread.Post([entered] {
      *entered = true;
      for (;;) pause();
      return absl::OkStatus();
    });
    while (!*entered) usleep(1000);
    EXPECT_EQ(thread.Take(), std::nullopt);
  }
  EXPECT_TRUE(*entered);
}

TEST(CallThreadTest, WithoutAThreadACallIsNotMadeAndTheNextTriesAgain) {
  bool called = false;
  CallThread thread;
  epd::testing::g_threads_left = 0;
  thread.Post([&called] {
    called = true;
    return absl::OkStatus();
  });
  epd::testing::g_threads_left = -1;
  EXPECT_TRUE(thread.open());
  const absl::Status refused = WaitFor(thread);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_NE(refused.message().find("no thread 'epd-calls'"), std::string::npos) << refused;
  EXPECT_FALSE(called);
  thread.Post([] { return absl::OkStatus(); });
  EXPECT_EQ(WaitFor(thread), absl::OkStatus());
}

}  // namespace
}  // namespace epd::cuda
