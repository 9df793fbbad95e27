// Goal: a stream that arms and waits with constants meets the worker's and epd's compare-and-swap as a
// CPU client does: every use gets its own answer, a wait can always be ended from outside, and a late
// worker completes nothing.
#include "kernels/cuda/driver/slot_operations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/backend/cuda/device/device_trials.h"
#include "proto/epd/v1/segment.h"
#include "proto/epd/v1/slot_word.h"
#include "tests/fakes/cuda/fake_driver.h"

namespace epd::cuda {
namespace {

using ::testing::IsEmpty;

class SlotOnStream : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(t.init(0), kSuccess);
    context = std::make_unique<ContextTrial>(t, 0);
    ASSERT_EQ(t.host_register(&slot, sizeof slot, kHostRegisterDeviceMap), kSuccess);
    ASSERT_EQ(t.host_get_device_pointer(&address, &slot, 0), kSuccess);
    ASSERT_EQ(t.stream_create(&stream, kStreamNonBlocking), kSuccess);
    Enqueue(ArmOperations(address));
    Enqueue(WaitOperations(address));
  }
  void Enqueue(std::vector<BatchedOperation> operations) {
    ASSERT_EQ(
        t.stream_batch(stream, static_cast<unsigned>(operations.size()), operations.data(), 0),
        kSuccess);
  }
  bool StreamEnded() { return t.stream_query(stream) == kSuccess; }

  FakeDriver driver;
  const DriverTable& t = driver.table();
  std::unique_ptr<ContextTrial> context;
  shm::Slot slot = {};
  DevicePointer address = 0;
  Stream stream = nullptr;
};

TEST_F(SlotOnStream, AWorkersAnswerEndsTheWait) {
  EXPECT_FALSE(StreamEnded());
  ASSERT_TRUE(shm::Claim(slot.word, 2));
  EXPECT_FALSE(StreamEnded());
  ASSERT_TRUE(shm::Answer(slot.word, 2, 0));
  EXPECT_TRUE(StreamEnded());
  EXPECT_THAT(driver.violations(), IsEmpty());
}

TEST_F(SlotOnStream, AWaitIsEndedFromOutsideClaimedOrNot) {
  ASSERT_TRUE(shm::Poison(slot.word, slot.word.load(), 10));
  EXPECT_TRUE(StreamEnded());
  EXPECT_EQ(shm::AnswerCode(slot.word.load()), 10u);
  Enqueue(ArmOperations(address));
  Enqueue(WaitOperations(address));
  ASSERT_TRUE(shm::Claim(slot.word, 2));
  ASSERT_TRUE(shm::Poison(slot.word, slot.word.load(), 10));
  EXPECT_TRUE(StreamEnded());
  EXPECT_FALSE(shm::Answer(slot.word, 2, 0)) << "the worker comes too late for its own use";
}

TEST_F(SlotOnStream, ALateWorkerCompletesNothing) {
  ASSERT_TRUE(shm::Claim(slot.word, 2));
  ASSERT_TRUE(shm::Poison(slot.word, slot.word.load(), 10));
  ASSERT_TRUE(StreamEnded());
  Enqueue(ArmOperations(address));
  Enqueue(WaitOperations(address));
  EXPECT_FALSE(shm::Answer(slot.word, 2, 0));
  EXPECT_FALSE(StreamEnded());
  ASSERT_TRUE(shm::Claim(slot.word, 3));
  EXPECT_FALSE(shm::Answer(slot.word, 2, 0));
  ASSERT_TRUE(shm::Answer(slot.word, 3, 0));
  EXPECT_TRUE(StreamEnded());
}

TEST_F(SlotOnStream, TheSameBytesServeAThousandReplays) {
  const std::vector<BatchedOperation> arm = ArmOperations(address);
  for (uint32_t replay = 0; replay < 1000; ++replay) {
    ASSERT_FALSE(StreamEnded()) << replay;
    ASSERT_TRUE(shm::Claim(slot.word, 2 + replay));
    ASSERT_TRUE(shm::Answer(slot.word, 2 + replay, replay % 17));
    ASSERT_TRUE(StreamEnded()) << replay;
    ASSERT_EQ(shm::AnswerCode(slot.word.load()), replay % 17);
    const std::vector<BatchedOperation> again = ArmOperations(address);
    ASSERT_EQ(std::memcmp(again.data(), arm.data(), arm.size() * sizeof arm[0]), 0);
    Enqueue(again);
    Enqueue(WaitOperations(address));
  }
  EXPECT_THAT(driver.violations(), IsEmpty());
}

// ---- every interleaving of a stream's two stores with a worker, its ghost and a poison ----

struct World {
  uint64_t word = 0;
  int use = 0;  // Of the stream: 0, 1, 2.
  int pc = 0;   // 0 writes done, 1 writes ready, 2 waits.
  uint32_t next_id = 2;
  uint32_t claim = 0;  // Of the worker that lives; 0: none.
  int claim_use = 0;
  uint32_t ghost = 0;  // What a worker that was replaced still believes in.
  uint64_t seen = 0;   // What a poisoner has read; 0: nothing.
  int poisons = 0;
  int replaced = 0;
  int answered_use = -1;  // Whose answer stands in `done`; -2: a poison's.

  auto operator<=>(const World&) const = default;
};

class Walk {
 public:
  // `ready_first`: the two stores in the wrong order.
  explicit Walk(bool ready_first) : ready_first_(ready_first) {}

  std::set<std::string> Run() {
    Visit(World{});
    return complaints_;
  }
  size_t num_states() const { return seen_.size(); }

 private:
  static constexpr int kUses = 3;

  void Visit(const World& w) {
    if (!seen_.insert(w).second) return;
    StepStream(w);
    StepWorker(w);
    StepPoison(w);
  }

  void StepStream(World w) {
    if (w.use == kUses) return;
    const bool writes_ready = (w.pc == 1) != ready_first_;
    if (w.pc < 2) {
      w.word = writes_ready ? (w.word & ~uint64_t{0xffffffff}) | 1 : w.word & 0xffffffff;
      if (!writes_ready) w.answered_use = -1;
      ++w.pc;
      return Visit(w);
    }
    if (w.word == 0) complaints_.insert("a wait that nobody can end");
    if (shm::Done(w.word) == 0) return;
    if (w.answered_use != -2 && w.answered_use != w.use) {
      complaints_.insert("a use was ended by the answer of another");
    }
    if (shm::Ready(w.word) != 0) complaints_.insert("a use ended while it was open");
    w.pc = 0;
    ++w.use;
    Visit(w);
  }

  void StepWorker(const World& w) {
    std::atomic<uint64_t> word(w.word);
    World next = w;
    if (w.claim == 0 && shm::Claim(word, w.next_id)) {
      next.word = word;
      next.claim = next.next_id++;
      next.claim_use = w.use;
      Visit(next);
    }
    if (w.claim != 0) {
      next = w;
      if (shm::Answer(word, w.claim, 0)) {
        next.word = word;
        next.answered_use = w.claim_use;
      }
      next.claim = 0;
      Visit(next);
    }
    if (w.claim != 0 && w.replaced == 0) {
      next = w;
      next.replaced = 1;
      next.ghost = std::exchange(next.claim, 0);
      Visit(next);
    }
    std::atomic<uint64_t> haunted(w.word);
    if (w.ghost != 0 && shm::Answer(haunted, w.ghost, 0)) {
      // Its own use is still open, so its answer is as good as any.
      next = w;
      next.word = haunted;
      next.ghost = 0;
      next.answered_use = w.claim_use;
      Visit(next);
    }
  }

  void StepPoison(const World& w) {
    World next = w;
    if (w.seen == 0 && w.poisons < 2 && shm::Ready(w.word) != 0) {
      next.seen = w.word;
      Visit(next);
    }
    if (w.seen == 0) return;
    std::atomic<uint64_t> word(w.word);
    next = w;
    next.seen = 0;
    ++next.poisons;
    if (shm::Poison(word, w.seen, 10)) {
      next.word = word;
      next.answered_use = -2;
    }
    Visit(next);
  }

  const bool ready_first_;
  std::set<World> seen_;
  std::set<std::string> complaints_;
};

TEST(SlotOnStreamWalk, EveryInterleavingGivesEachUseItsOwnAnswer) {
  Walk walk(/*ready_first=*/false);
  EXPECT_THAT(walk.Run(), IsEmpty());
  EXPECT_GT(walk.num_states(), 200u);
}

TEST(SlotOnStreamWalk, TheWalkFindsTheTwoStoresInTheWrongOrder) {
  EXPECT_THAT(Walk(/*ready_first=*/true).Run(), ::testing::Contains("a wait that nobody can end"));
}

}  // namespace
}  // namespace epd::cuda
