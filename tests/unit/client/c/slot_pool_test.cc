// Goal: the client's side of a slot's cycle: who gets which slot, how waits end, and when the
// worker is woken.
#include "client/c/slot_pool.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "proto/epd/v1/slot_word.h"

namespace epd::client {
namespace {

constexpr std::chrono::nanoseconds kNoSpin{0};

class SlotPoolTest : public ::testing::Test {
 protected:
  SlotPoolTest()
      : segment_(std::make_unique<shm::SlotsSegment>()),
        eventfd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
        pool_(shm::SlotsView::Of(segment_.get(), {}), eventfd_) {}
  ~SlotPoolTest() override { close(eventfd_); }

  uint64_t Rings() {
    uint64_t count = 0;
    return read(eventfd_, &count, sizeof count) == sizeof count ? count : 0;
  }
  // As a worker would; wakes the waiter.
  void Answer(int slot, uint32_t code) {
    shm::Claim(pool_[slot].word, shm::kFirstClaimId);
    ASSERT_TRUE(shm::Answer(pool_[slot].word, shm::kFirstClaimId, code));
  }
  static Clock::time_point In(int ms) { return Clock::now() + std::chrono::milliseconds(ms); }

  std::unique_ptr<shm::SlotsSegment> segment_;
  const int eventfd_;
  SlotPool pool_;
};

TEST_F(SlotPoolTest, EverySlotIsGivenOnceAndThenNone) {
  std::set<int> given;
  for (uint32_t i = 0; i < shm::kSlotsPerSession; ++i) given.insert(pool_.Acquire());
  EXPECT_EQ(given.size(), shm::kSlotsPerSession);
  EXPECT_EQ(*given.begin(), 0);
  EXPECT_EQ(pool_.Acquire(), -1);
  pool_.Release(17);
  EXPECT_EQ(pool_.Acquire(), 17);
}

TEST_F(SlotPoolTest, SeveralThatAreAskedForTogetherAreOfOneGroup) {
  std::set<int> given;
  const int single = pool_.Acquire();
  given.insert(single);
  for (int site = 0; site < 84; ++site) {  // 21 in each of four groups, of which one slot is left.
    const std::vector<int> slots = pool_.AcquireOfOneGroup(3);
    ASSERT_EQ(slots.size(), 3u) << site;
    for (const int slot : slots) {
      EXPECT_EQ(slot / 64, slots.front() / 64);
      EXPECT_TRUE(given.insert(slot).second) << slot << " was given twice";
    }
  }
  EXPECT_TRUE(pool_.AcquireOfOneGroup(3).empty());
  for (int left = 0; left < 3; ++left) EXPECT_TRUE(given.insert(pool_.Acquire()).second);
  EXPECT_EQ(pool_.Acquire(), -1);
  for (const int slot : {5, 70, 6, 71, 7}) pool_.Release(slot);
  EXPECT_EQ(pool_.AcquireOfOneGroup(3), std::vector<int>({5, 6, 7}));
}

TEST_F(SlotPoolTest, ARetiredSlotComesBackOnlyWhenItsLastUseIsAnswered) {
  for (uint32_t i = 0; i < shm::kSlotsPerSession; ++i) ASSERT_GE(pool_.Acquire(), 0);
  for (const int slot : {3, 4}) {
    pool_.Arm(slot);
    pool_.Retire(slot);
  }
  EXPECT_EQ(pool_.Acquire(), -1);
  Answer(4, 0);
  EXPECT_EQ(pool_.Acquire(), 4);
  EXPECT_EQ(pool_.Acquire(), -1);
}

TEST_F(SlotPoolTest, ArmingMarksTheSlotAndRingsOnlyASleepingWorker) {
  pool_.Arm(70);
  EXPECT_EQ(segment_->header.armed[1].load(), uint64_t{1} << 6);
  EXPECT_EQ(segment_->slots[70].word.load(), shm::kArmed);
  EXPECT_EQ(Rings(), 0u);
  segment_->header.asleep.store(1);
  pool_.Arm(71);
  EXPECT_EQ(Rings(), 1u);
}

TEST_F(SlotPoolTest, AnAnswerEndsTheWaitWithItsCode) {
  pool_.Arm(5);
  std::thread worker([&] {
    while (pool_[5].sleeping.load() == 0) std::this_thread::yield();
    Answer(5, 8);
    // The library never wakes itself; a poison of another slot must not matter either.
    pool_.PoisonAll();
  });
  EXPECT_EQ(pool_.Wait(5, In(10'000), kNoSpin), 8u);
  worker.join();
}

TEST_F(SlotPoolTest, ASpinningWaitSeesTheAnswerWithoutSleeping) {
  pool_.Arm(6);
  Answer(6, 0);
  EXPECT_EQ(pool_.Wait(6, In(0), std::chrono::milliseconds(1)), 0u);
  EXPECT_EQ(pool_[6].sleeping.load(), 0u);
}

TEST_F(SlotPoolTest, WhenTheDeadlinePassesTheUseEndsAndALateWorkerCannotAnswerIt) {
  pool_.Arm(7);
  ASSERT_TRUE(shm::Claim(pool_[7].word, 2));
  EXPECT_EQ(pool_.Wait(7, In(20), kNoSpin), static_cast<uint32_t>(Code::kDeadlineExceeded));
  EXPECT_FALSE(shm::Answer(pool_[7].word, 2, 0));
}

TEST_F(SlotPoolTest, AWordThatSomebodyWroteOverEndsTheWaitAtItsDeadline) {
  pool_.Arm(7);
  pool_[7].word.store(0);  // Neither open nor answered.
  EXPECT_EQ(pool_.Wait(7, In(20), kNoSpin), static_cast<uint32_t>(Code::kDataLoss));
  EXPECT_EQ(pool_[7].sleeping.load(), 0u);
  pool_.Arm(7);
  Answer(7, 0);
  EXPECT_EQ(pool_.Wait(7, In(10'000), kNoSpin), 0u) << "the slot can be used again";
}

TEST_F(SlotPoolTest, PoisonEndsOpenUsesNowAndLater) {
  pool_.Arm(8);
  std::thread poison([&] { pool_.PoisonAll(); });
  EXPECT_EQ(pool_.Wait(8, In(10'000), kNoSpin), static_cast<uint32_t>(Code::kUnavailable));
  poison.join();
  pool_.Arm(9);
  EXPECT_EQ(pool_.Wait(9, In(10'000), kNoSpin), static_cast<uint32_t>(Code::kUnavailable));
}

TEST_F(SlotPoolTest, EagerBuffersAreASlotsUntilItIsFree) {
  constexpr uint32_t kBuffers = 10;
  const int a = pool_.Acquire();
  const int b = pool_.Acquire();
  const int c = pool_.Acquire();
  EXPECT_EQ(pool_.TakeEagerBuffers(a, 4, kBuffers), 0u);
  EXPECT_EQ(pool_.TakeEagerBuffers(b, 1, kBuffers), 4u);
  EXPECT_EQ(pool_.TakeEagerBuffers(c, 6, kBuffers), std::nullopt) << "five are left";
  EXPECT_EQ(pool_.TakeEagerBuffers(c, 5, kBuffers), 5u);
  pool_.Release(a);
  bool is_free = false;
  pool_.RetireUntil(c, [&] { return is_free; });
  const int d = pool_.Acquire();
  EXPECT_EQ(pool_.TakeEagerBuffers(d, 5, kBuffers), std::nullopt) << "peers read c's";
  is_free = true;
  EXPECT_EQ(pool_.TakeEagerBuffers(d, 5, kBuffers), 5u);
  const int e = pool_.Acquire();
  EXPECT_EQ(pool_.TakeEagerBuffers(e, 5, 2 * shm::kMaxEagerBuffers), 10u);
  const int f = pool_.Acquire();
  EXPECT_EQ(pool_.TakeEagerBuffers(f, shm::kMaxEagerBuffers, 2 * shm::kMaxEagerBuffers),
            std::nullopt);
}

TEST_F(SlotPoolTest, BuffersOfAnAnsweredPulledComeBackBehindOneThatIsStillOpen) {
  const int a = pool_.Acquire();
  const int b = pool_.Acquire();
  ASSERT_EQ(pool_.TakeEagerBuffers(a, 2, 8), 0u);
  ASSERT_EQ(pool_.TakeEagerBuffers(b, 6, 8), 2u);
  for (const int slot : {a, b}) {
    pool_.Arm(slot);
    pool_.Retire(slot);
  }
  const int c = pool_.Acquire();
  EXPECT_EQ(pool_.TakeEagerBuffers(c, 6, 8), std::nullopt);
  Answer(b, 0);
  EXPECT_EQ(pool_.TakeEagerBuffers(c, 6, 8), 2u);
}

TEST_F(SlotPoolTest, BuffersOfAWaitThatEndedItselfAreNobodysForGood) {
  const int a = pool_.Acquire();
  ASSERT_EQ(pool_.TakeEagerBuffers(a, 2, 8), 0u);
  pool_.Arm(a);
  EXPECT_EQ(pool_.Wait(a, In(20), kNoSpin), static_cast<uint32_t>(Code::kDeadlineExceeded));
  pool_.Release(a);
  EXPECT_EQ(pool_.TakeEagerBuffers(pool_.Acquire(), 2, 8), 2u) << "peers may read the first two";
}

// As many as may be; nothing is behind their pages until they are used.
class ManySlotsTest : public ::testing::Test {
 protected:
  ManySlotsTest() : memory_(Map()), pool_(View(), eventfd_) {}
  ~ManySlotsTest() override {
    munmap(memory_, kLayout.bytes());
    close(eventfd_);
  }
  static void* Map() {
    return mmap(nullptr, kLayout.bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                0);
  }
  shm::SlotsView View() const { return shm::SlotsView::Of(memory_, kLayout); }
  // Of slot pages and of words' pages.
  size_t NumPages() const {
    std::vector<unsigned char> there(kLayout.bytes() / 4096);
    EXPECT_EQ(mincore(memory_, kLayout.bytes(), there.data()), 0);
    return static_cast<size_t>(std::count_if(there.begin(), there.end(),
                                             [](unsigned char one) { return (one & 1) != 0; }));
  }

  static constexpr shm::SlotsLayout kLayout =
      shm::SlotsLayout::For(features::kTakesManySlots, limits::kMaxOpSlots);
  void* const memory_;
  const int eventfd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  SlotPool pool_;
};

TEST_F(ManySlotsTest, EverySlotIsGivenOnceAndItsGroupIsSaidBefore) {
  for (uint32_t i = 0; i < limits::kMaxOpSlots; ++i) {
    ASSERT_EQ(pool_.Acquire(), static_cast<int>(i));
    ASSERT_EQ(View().UsedGroups() >> (i / 64) & 1, 1u);
    ASSERT_EQ(i % 64 == 0 ? std::popcount(View().UsedGroups()) : 0, i % 64 == 0 ? i / 64 + 1 : 0);
  }
  EXPECT_EQ(pool_.Acquire(), -1);
  pool_.Arm(4095);
  pool_.SetStreamed(4094, true);
  EXPECT_EQ(View().armed(63), uint64_t{1} << 63);
  EXPECT_EQ(View().streamed(63), uint64_t{1} << 62);
  pool_.PoisonAll();
  EXPECT_FALSE(pool_.IsOpen(4095));
}

TEST_F(ManySlotsTest, ASessionOfOneCallTouchesNoMoreThanThat) {
  const int slot = pool_.Acquire();
  pool_.Arm(slot);
  pool_.PoisonAll();
  EXPECT_LE(NumPages(), 3u) << "the header, a page of words and the slot";
}

TEST(SpinTimeTest, TheEnvironmentDecidesAndElseTheSpareCpus) {
  setenv("EPD_SPIN_US", "7", 1);
  EXPECT_EQ(SpinTime(1000), std::chrono::microseconds(7));
  setenv("EPD_SPIN_US", "soon", 1);
  EXPECT_EQ(SpinTime(1'000'000), kNoSpin) << "a value that is no number is not taken";
  unsetenv("EPD_SPIN_US");
  EXPECT_EQ(SpinTime(1'000'000), kNoSpin);
  EXPECT_GT(SpinTime(0).count(), 0);
}

}  // namespace
}  // namespace epd::client
