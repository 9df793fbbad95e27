// Goal: when the worker is dead, every open use ends exactly once, with what had been decided and
// never with more.
#include "daemon/node/workers/poisoner.h"

#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "daemon/node/workers/poison_pass.h"
#include "daemon/node/workers/segment.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/epd/v1/slot_word.h"

namespace epd {
namespace {

using shm::Outcome;
using shm::Step;

constexpr uint32_t kAborted = 10;
constexpr uint32_t kUnavailable = 14;
const absl::Status kDead = absl::AbortedError("dead");

uint64_t Claim(Step step, uint32_t id) { return uint64_t{static_cast<uint32_t>(step)} << 32 | id; }

RecordedOperation Operation(Outcome outcome, uint32_t code = 0) {
  return {5, outcome, code, code == 0 ? "" : "rank=2 is gone"};
}

Poisoned PoisonSession(const shm::SlotsView& slots, const shm::RecordsView& records,
                       uint32_t record_index, const PoisonCause& cause) {
  Poisoned poisoned;
  PoisonPass pass;
  while (!pass.Turn({{SessionId(1), slots, record_index}}, records, cause, poisoned)) {
  }
  return poisoned;
}

TEST(DecidePoisonTest, ClosedWordsAreLeftAlone) {
  for (const uint64_t word : {uint64_t{0}, shm::Answered(0), shm::Answered(kAborted)}) {
    EXPECT_FALSE(
        DecidePoison(word, Claim(Step::kPublish, 2), Operation(Outcome::kGood), kDead).has_value());
  }
}

TEST(DecidePoisonTest, WalksEveryStepOutcomeAndClaim) {
  for (const Step step : {Step::kAnnounce, Step::kPublish, Step::kPulled, Step::kAnnounceStaged}) {
    for (const Outcome outcome : {Outcome::kUndecided, Outcome::kGood, Outcome::kFailed}) {
      for (const uint32_t recorded_id : {2u, 3u}) {
        const uint32_t code = outcome == Outcome::kFailed ? kUnavailable : 0;
        const auto answer = DecidePoison(shm::Claimed(2), Claim(step, recorded_id),
                                         Operation(outcome, code), kDead);
        ASSERT_TRUE(answer.has_value());
        uint32_t expected = kAborted;
        if (recorded_id == 2 && outcome == Outcome::kFailed) expected = kUnavailable;
        const bool says_good = step == Step::kPublish || step == Step::kAnnounceStaged;
        if (recorded_id == 2 && outcome == Outcome::kGood && says_good) expected = 0;
        EXPECT_EQ(answer->code, expected)
            << "step " << static_cast<int>(step) << " outcome " << static_cast<int>(outcome)
            << " recorded id " << recorded_id;
        const std::string text = expected == 0          ? ""
                                 : expected == kAborted ? "dead"
                                                        : "rank=2 is gone";
        EXPECT_EQ(answer->message, text);
      }
    }
  }
}

TEST(DecidePoisonTest, ArmedButUnclaimedUseIsAbortedWhateverTheRecordSays) {
  const auto answer =
      DecidePoison(shm::kArmed, Claim(Step::kPublish, 1), Operation(Outcome::kGood), kDead);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->code, kAborted);
}

TEST(DecidePoisonTest, FailedRecordWithoutACodeNeverBecomesAGoodAnswer) {
  const auto answer = DecidePoison(shm::Claimed(2), Claim(Step::kPublish, 2),
                                   Operation(Outcome::kFailed, 0), kDead);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->code, kAborted);
}

class PoisonSessionTest : public testing::Test {
 protected:
  PoisonSessionTest()
      : slots_(std::make_unique<shm::SlotsSegment>()),
        records_(std::make_unique<shm::RecordsSegment>()) {}

  // Slot `index` holds a claimed publish of operation `op_id`.
  void ClaimPublish(uint32_t index, uint64_t op_id) {
    records_->slots[kBlock][index].op_id = op_id;
    records_->slots[kBlock][index].claim = Claim(Step::kPublish, 9);
    slots_->slots[index].word = shm::Claimed(9);
  }
  void Decide(uint64_t op_id, Outcome outcome, uint32_t code) {
    shm::OperationRecord& record = records_->operations[op_id % shm::kMaxOperations];
    record.op_id = op_id;
    record.outcome = static_cast<uint32_t>(outcome);
    record.code = code;
    snprintf(record.cause, sizeof record.cause, "cause of %d", static_cast<int>(op_id));
  }
  uint64_t Poison() {
    poisoned_ = PoisonSession(view(), records(), kBlock, [](const shm::SlotRequest& request) {
      return absl::AbortedError("group " + std::to_string(request.group_id) +
                                ": the worker is dead");
    });
    return poisoned_.num_ended;
  }
  uint64_t Word(uint32_t index) const { return slots_->slots[index].word; }
  std::string Message(uint32_t index) const { return slots_->slots[index].reply.message; }

  static constexpr uint32_t kBlock = 3;
  shm::SlotsView view() const { return shm::SlotsView::Of(slots_.get(), {}); }
  shm::RecordsView records() const {
    return shm::RecordsView::Of(records_.get(), sizeof(shm::RecordsSegment));
  }

  std::unique_ptr<shm::SlotsSegment> slots_;
  std::unique_ptr<shm::RecordsSegment> records_;
  Poisoned poisoned_;
};

TEST_F(PoisonSessionTest, EveryOpenUseEndsOnceWithItsOwnOutcome) {
  slots_->slots[0].word = shm::kArmed;
  slots_->slots[0].request.group_id = 77;
  ClaimPublish(1, 100);
  Decide(100, Outcome::kGood, 0);
  ClaimPublish(2, 101);
  Decide(101, Outcome::kFailed, kUnavailable);
  ClaimPublish(shm::kSlotsPerSession - 1, 102);
  Decide(102, Outcome::kUndecided, 0);

  EXPECT_EQ(Poison(), 4u);
  EXPECT_EQ(poisoned_.failed_calls[77], 1u);
  EXPECT_EQ(Word(0), shm::Answered(kAborted));
  EXPECT_EQ(Message(0), "group 77: the worker is dead");
  EXPECT_EQ(Word(1), shm::Answered(0));
  EXPECT_EQ(Word(2), shm::Answered(kUnavailable));
  EXPECT_EQ(Message(2), "cause of 101");
  EXPECT_EQ(Word(shm::kSlotsPerSession - 1), shm::Answered(kAborted));
  EXPECT_EQ(Poison(), 0u);
}

TEST_F(PoisonSessionTest, RecordOfANewerOperationAtTheSamePlaceIsNotMistaken) {
  ClaimPublish(0, 100);
  Decide(100 + shm::kMaxOperations, Outcome::kGood, 0);
  EXPECT_EQ(Poison(), 1u);
  EXPECT_EQ(Word(0), shm::Answered(kAborted));
}

TEST_F(PoisonSessionTest, UndecidedOperationsGetOneOutcomeForAllRanks) {
  Decide(100, Outcome::kUndecided, 0);
  Decide(101, Outcome::kGood, 0);
  FailUndecided(records(), absl::AbortedError("the worker is dead"));
  const shm::OperationRecord& failed = records_->operations[100];
  EXPECT_EQ(failed.outcome, static_cast<uint32_t>(Outcome::kFailed));
  EXPECT_EQ(failed.code, kAborted);
  EXPECT_STREQ(failed.cause, "the worker is dead");
  EXPECT_EQ(records_->operations[101].outcome, static_cast<uint32_t>(Outcome::kGood));
  EXPECT_EQ(records_->operations[0].outcome, static_cast<uint32_t>(Outcome::kUndecided))
      << "a free record";
}

TEST_F(PoisonSessionTest, LongTextIsCutAndTerminated) {
  slots_->slots[0].word = shm::kArmed;
  PoisonSession(view(), records(), kBlock,
                [](const shm::SlotRequest&) { return absl::AbortedError(std::string(9000, 'x')); });
  EXPECT_EQ(Message(0).size(), shm::kMessageBytes - 1);
}

// All that a client has to say of them.
TEST(PoisonManySlotsTest, OnlyThoseInUseAreLookedAtAndNoOtherPageComesIntoBeing) {
  const auto layout = shm::SlotsLayout::For(features::kTakesManySlots, limits::kMaxOpSlots);
  const auto slots = CreateSlots(1, 1, layout);
  const auto records = CreateRecords(limits::kMaxOpSlots);
  ASSERT_TRUE(slots.ok() && records.ok());
  const shm::SlotsView view = shm::SlotsView::Of(slots->data(), layout);
  const auto poison = [&] {
    return PoisonSession(view, Records(*records), 3, [](const shm::SlotRequest&) { return kDead; })
        .num_ended;
  };
  const size_t untouched = slots->committed_bytes() + records->committed_bytes();
  EXPECT_EQ(poison(), 0u);
  EXPECT_EQ(slots->committed_bytes() + records->committed_bytes(), untouched);
  for (const uint32_t slot : {0u, 4095u}) {
    view.UseGroup(slot / shm::kSlotsOfGroup);
    view.word(slot) = shm::kArmed;
  }
  EXPECT_EQ(poison(), 2u);
  EXPECT_EQ(view.word(4095), shm::Answered(kAborted));
  EXPECT_LE(slots->committed_bytes() + records->committed_bytes(), untouched + 6 * 4096)
      << "two pages of words, two slots, two pages of claims";
}

// What would be a SIGBUS ends no epd.
TEST(PoisonManySlotsTest, ASlotWithoutMemoryIsEndedAllTheSame) {
  const auto layout = shm::SlotsLayout::For(features::kTakesManySlots, limits::kMaxOpSlots);
  const int file = memfd_create("poisoner_test", MFD_CLOEXEC);
  const shm::SlotsView whole = shm::SlotsView::Of(nullptr, layout);
  ASSERT_EQ(ftruncate(file, static_cast<off_t>(whole.OffsetOfSlot(64))), 0);
  void* const data = mmap(nullptr, layout.bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const shm::SlotsView view = shm::SlotsView::Create(data, 1, 1, layout);
  const auto records = CreateRecords(limits::kMaxOpSlots);
  ASSERT_TRUE(records.ok());
  for (const uint32_t slot : {3u, 100u}) {
    view.UseGroup(slot / shm::kSlotsOfGroup);
    view.word(slot) = shm::kArmed;
  }
  const Poisoned poisoned =
      PoisonSession(view, Records(*records), 3, [](const shm::SlotRequest&) { return kDead; });
  EXPECT_EQ(poisoned.num_ended, 1u);
  EXPECT_EQ(view.word(3), shm::Answered(kAborted));
  EXPECT_EQ(view.word(100),
            shm::Answered(static_cast<uint32_t>(absl::StatusCode::kResourceExhausted)));
  munmap(data, layout.bytes());
  close(file);
}

// Sessions whose clients have armed all their slots.
class PoisonPassTest : public testing::Test {
 protected:
  static constexpr uint32_t kSlots = limits::kMaxOpSlots;
  static constexpr uint64_t kOthersWaitFor = 600;  // Slots, of some microseconds each.

  PoisonPassTest() : records_(CreateRecords(kSlots)) { EXPECT_TRUE(records_.ok()); }
  void Add(uint64_t id) {
    auto slots = CreateSlots(id, 1, kLayout);
    ASSERT_TRUE(slots.ok());
    segments_.push_back(*std::move(slots));
    const shm::SlotsView view = shm::SlotsView::Of(segments_.back().data(), kLayout);
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      view.UseGroup(slot / shm::kSlotsOfGroup);
      view.word(slot) = shm::kArmed;
    }
    targets_.push_back({SessionId(id), view, static_cast<uint32_t>(id)});
  }
  bool Turn() {
    const uint64_t before = poisoned_.num_looked;
    const bool over = pass_.Turn(
        targets_, Records(*records_), [](const shm::SlotRequest&) { return kDead; }, poisoned_);
    looked_in_turn_ = poisoned_.num_looked - before;
    ++num_turns_;
    return over;
  }
  bool IsEnded(size_t target) const {
    for (uint32_t slot = 0; slot < kSlots; ++slot)
      if (targets_[target].slots.word(slot) != shm::Answered(kAborted)) return false;
    return true;
  }

  static constexpr shm::SlotsLayout kLayout =
      shm::SlotsLayout::For(features::kTakesManySlots, kSlots);
  absl::StatusOr<SharedSegment> records_;
  std::vector<SharedSegment> segments_;
  std::vector<PoisonTarget> targets_;
  PoisonPass pass_;
  Poisoned poisoned_;
  uint64_t looked_in_turn_ = 0;
  int num_turns_ = 0;
};

TEST_F(PoisonPassTest, ATurnEndsNoMoreThanOthersCanWaitForAndAPassEndsAll) {
  for (uint64_t id = 1; id <= 8; ++id) Add(id);
  bool over = false;
  while (!over) {
    over = Turn();
    ASSERT_LE(looked_in_turn_, kOthersWaitFor);
    ASSERT_LE(num_turns_, 1000);
  }
  EXPECT_EQ(poisoned_.num_ended, 8u * kSlots);
  for (size_t i = 0; i < 8; ++i) EXPECT_TRUE(IsEnded(i)) << i;
}

TEST_F(PoisonPassTest, SlotsThatWereAnsweredCostAsMuchAndAreBoundedAsWell) {
  Add(1);
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    targets_[0].slots.word(slot) = shm::Answered(0);
    targets_[0].slots.slot(slot).sleeping = 1;
  }
  EXPECT_FALSE(Turn());
  EXPECT_LE(looked_in_turn_, kOthersWaitFor);
  EXPECT_EQ(poisoned_.num_ended, 0u);
}

TEST_F(PoisonPassTest, SessionsComeAndGoBetweenTurns) {
  for (uint64_t id = 1; id <= 3; ++id) Add(id);
  EXPECT_FALSE(Turn());
  targets_.erase(targets_.begin());  // Where the pass stands.
  Add(4);
  while (!Turn()) {
  }
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(IsEnded(i)) << i;
  EXPECT_FALSE(IsEnded(2)) << "it came after the pass had begun";
  targets_[0].slots.word(7) = shm::kArmed;
  while (!Turn()) {
  }
  EXPECT_TRUE(IsEnded(0)) << "the next pass begins with the first";
  EXPECT_TRUE(IsEnded(2));
}

// The dead worker's successor starts when the first pass is over.
TEST_F(PoisonPassTest, SessionsThatComeAndGoInEachTurnDoNotKeepAPassFromItsEnd) {
  for (uint64_t id = 1; id <= 2; ++id) Add(id);
  bool over = Turn();
  for (uint64_t id = 3; id < 60 && !over; ++id) {
    Add(id);
    if (targets_.size() > 4) targets_.erase(targets_.begin() + 2);
    over = Turn();
  }
  EXPECT_TRUE(over);
  EXPECT_LE(num_turns_, 17) << "2 sessions of 4,096 slots, 512 in a turn";
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(IsEnded(i)) << i;
}

TEST_F(PoisonPassTest, GroupsWithoutAnArmedSlotAreBoundedAsWell) {
  for (uint64_t id = 1; id <= 20; ++id) {
    Add(id);
    for (uint32_t slot = 0; slot < kSlots; ++slot) targets_.back().slots.word(slot) = 0;
  }
  EXPECT_FALSE(Turn()) << "20 sessions of 64 groups";
  while (!Turn()) {
    ASSERT_LE(num_turns_, 10);
  }
  EXPECT_EQ(poisoned_.num_ended, 0u);
}

TEST_F(PoisonSessionTest, EndedIsSet) {
  MarkEnded(view());
  EXPECT_EQ(slots_->header.ended, 1u);
}

}  // namespace
}  // namespace epd
