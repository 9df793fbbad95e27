// Goal: no operation ever waits for another one's thread.
#include "client/program/completer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

namespace epd::program {
namespace {

TEST(CompleterTest, WorkThatWaitsForLaterWorkIsNotStuck) {
  Completer& completer = *new Completer;  // Its threads outlive the test.
  constexpr int kAtOnce = 32;
  auto all = std::make_shared<std::latch>(kAtOnce);
  std::vector<std::future<void>> ended;
  for (int i = 0; i < kAtOnce; ++i) {
    auto done = std::make_shared<std::promise<void>>();
    ended.push_back(done->get_future());
    ASSERT_TRUE(completer
                    .Run([all, done] {
                      all->arrive_and_wait();
                      done->set_value();
                    })
                    .ok());
  }
  for (std::future<void>& one : ended) {
    ASSERT_EQ(one.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  }
  EXPECT_EQ(completer.num_threads(), static_cast<std::size_t>(kAtOnce));
}

TEST(CompleterTest, WorkOneAfterAnotherReusesAThread) {
  Completer& completer = *new Completer;
  for (int i = 0; i < 100; ++i) {
    auto done = std::make_shared<std::promise<void>>();
    std::future<void> ended = done->get_future();
    ASSERT_TRUE(completer.Run([done] { done->set_value(); }).ok());
    ASSERT_EQ(ended.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  }
  // A thread that has just ended its work may not be idle yet when the next work comes.
  EXPECT_LE(completer.num_threads(), 4u);
}

TEST(CompleterTest, WorkIsDestroyedBeforeItsThreadSleeps) {
  Completer& completer = *new Completer;
  auto held = std::make_shared<std::promise<void>>();
  std::weak_ptr<std::promise<void>> watched = held;
  std::future<void> ended = held->get_future();
  ASSERT_TRUE(completer.Run([held] { held->set_value(); }).ok());
  held = nullptr;
  ASSERT_EQ(ended.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!watched.expired() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  EXPECT_TRUE(watched.expired());
}

}  // namespace
}  // namespace epd::program
