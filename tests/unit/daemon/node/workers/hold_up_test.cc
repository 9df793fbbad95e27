// Goal: a user is blamed for a worker's silence only where one look after the other has found it waiting in the kernel for that
// user's memory.
#include "daemon/node/workers/hold_up.h"

#include <gtest/gtest.h>

#include "proto/epd/v1/records_view.h"

namespace epd {
namespace {

constexpr uint32_t kAlice = 1001;
constexpr uint32_t kBob = 1002;
const absl::Time kAsked = absl::UnixEpoch() + absl::Hours(1);

class HoldUpTest : public ::testing::Test {
 protected:
  // At the time that is asked for.
  void Look(bool waits, uint64_t touched) {
    now_ = hold_up_.NextLook(kAsked);
    hold_up_.Add({.waits_in_kernel = waits, .touched = touched}, now_);
  }
  void LookOften(int times, uint32_t uid) {
    for (int i = 0; i < times; ++i) Look(true, shm::TouchedBy(uid));
  }

  HoldUp hold_up_;
  absl::Time now_;
};

TEST_F(HoldUpTest, WhoIsFoundInEachLookIsBlamedBeforeTheWorkerCountsAsSilent) {
  LookOften(HoldUp::kLooks - 1, kAlice);
  EXPECT_FALSE(hold_up_.uid().has_value());
  LookOften(1, kAlice);
  EXPECT_EQ(hold_up_.uid(), kAlice);
  EXPECT_LT(now_, kAsked + absl::Seconds(2));
  EXPECT_EQ(hold_up_.NextLook(kAsked), absl::InfiniteFuture()) << "it is known";
}

TEST_F(HoldUpTest, RootsUidIsAUid) {
  LookOften(HoldUp::kLooks, 0);
  EXPECT_EQ(hold_up_.uid(), 0u);
}

TEST_F(HoldUpTest, OneLookThatFindsSomethingElseBeginsAnew) {
  const HoldUp::Look others[] = {
      {.waits_in_kernel = false, .touched = shm::TouchedBy(kAlice)},  // It runs, or is stopped.
      {.waits_in_kernel = true, .touched = shm::TouchedBy(kBob)},
      {.waits_in_kernel = true, .touched = 0},  // For something else.
  };
  for (const HoldUp::Look& other : others) {
    hold_up_.Reset();
    LookOften(HoldUp::kLooks - 1, kAlice);
    Look(other.waits_in_kernel, other.touched);
    LookOften(HoldUp::kLooks - 1, kAlice);
    EXPECT_FALSE(hold_up_.uid().has_value()) << other.touched;
    LookOften(1, kAlice);
    EXPECT_EQ(hold_up_.uid(), kAlice);
  }
}

TEST_F(HoldUpTest, NobodyIsBlamedForAWaitForNobodysMemory) {
  for (int i = 0; i < 10 * HoldUp::kLooks; ++i) Look(true, 0);
  EXPECT_FALSE(hold_up_.uid().has_value());
}

TEST_F(HoldUpTest, LooksBeginOnceAnAnswerIsOverdueAndEndWithIt) {
  EXPECT_EQ(hold_up_.NextLook(absl::InfiniteFuture()), absl::InfiniteFuture());
  EXPECT_EQ(hold_up_.NextLook(kAsked), kAsked + HoldUp::kFirst);
  LookOften(1, kAlice);
  EXPECT_EQ(hold_up_.NextLook(kAsked), kAsked + HoldUp::kFirst + HoldUp::kEvery);
  LookOften(HoldUp::kLooks, kAlice);
  hold_up_.Reset();
  EXPECT_FALSE(hold_up_.uid().has_value());
}

}  // namespace
}  // namespace epd
