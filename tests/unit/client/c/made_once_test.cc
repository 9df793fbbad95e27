// Goal: what takes long to make is made once and holds up nobody but those who ask for it.
#include "client/c/made_once.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>
#include <thread>

namespace epd::client {
namespace {

using Made = MadeOnce<int, std::string>;
using std::chrono::milliseconds;
using std::chrono::seconds;

Made::TimePoint In(std::chrono::milliseconds wait) {
  return std::chrono::steady_clock::now() + wait;
}

bool Always(const std::string&) { return true; }

Status Get(Made& made, int key, const std::string& text, std::string* value) {
  return made.Get(
      key, In(seconds(10)), Always,
      [&text](std::string* out) {
        *out = text;
        return Status();
      },
      value);
}

// Another thread makes key 1 until it is let go.
class MadeOnceTest : public ::testing::Test {
 protected:
  MadeOnceTest() {
    maker_ = std::thread([this] {
      std::string value;
      const Status status = made_.Get(
          1, In(seconds(10)), Always,
          [this](std::string* out) {
            ++num_made_;
            let_go_.get_future().wait();
            *out = "slow";
            return result_;
          },
          &value);
      EXPECT_EQ(status.code, result_.code);
    });
    while (num_made_ == 0) std::this_thread::yield();
  }
  void LetGo() {
    let_go_.set_value();
    maker_.join();
  }

  Made made_;
  Status result_;
  std::atomic<int> num_made_ = 0;
  std::promise<void> let_go_;
  std::thread maker_;
};

TEST_F(MadeOnceTest, OthersGoOnWhileOneIsBeingMade) {
  std::string value;
  EXPECT_TRUE(Get(made_, 2, "quick", &value).ok());
  EXPECT_EQ(value, "quick");
  EXPECT_EQ(made_.All().size(), 1u) << "looking waits for nobody";
  EXPECT_EQ(made_.Take([](int key) { return key == 2; }, In(seconds(10))).size(), 1u);
  LetGo();
}

TEST_F(MadeOnceTest, WhoAsksForItMeanwhileGetsTheSame) {
  std::string value;
  std::thread second([&] { EXPECT_TRUE(Get(made_, 1, "another", &value).ok()); });
  LetGo();
  second.join();
  EXPECT_EQ(value, "slow");
}

TEST_F(MadeOnceTest, AWaitHasAnEnd) {
  std::string value;
  const auto make = [](std::string*) { return Status(); };
  EXPECT_EQ(made_.Get(1, In(milliseconds(1)), Always, make, &value).code, Code::kDeadlineExceeded);
  LetGo();
}

TEST_F(MadeOnceTest, WhatCouldNotBeMadeIsMadeByTheNext) {
  result_ = {Code::kUnavailable, "no"};
  LetGo();
  std::string value;
  EXPECT_TRUE(Get(made_, 1, "second", &value).ok());
  EXPECT_EQ(value, "second");
}

TEST_F(MadeOnceTest, WhatNoLongerDoesIsMadeAnewByWhoFindsTheOldOne) {
  LetGo();
  std::string value;
  EXPECT_TRUE(made_
                  .Get(
                      1, In(seconds(10)), [](const std::string&) { return false; },
                      [](std::string* out) {
                        EXPECT_EQ(*out, "slow");
                        *out = "new";
                        return Status();
                      },
                      &value)
                  .ok());
  EXPECT_EQ(value, "new");
  EXPECT_EQ(made_.All(), (std::vector<std::pair<int, std::string>>{{1, "new"}}));
}

TEST_F(MadeOnceTest, TakingWaitsForWhatIsBeingMade) {
  std::thread taking(
      [this] { EXPECT_EQ(made_.Take([](int) { return true; }, In(seconds(10))).size(), 1u); });
  LetGo();
  taking.join();
  EXPECT_TRUE(made_.All().empty());
}

}  // namespace
}  // namespace epd::client
