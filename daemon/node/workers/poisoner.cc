#include "daemon/node/workers/poisoner.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "daemon/shared_memory/pages.h"
#include "proto/epd/v1/slot_word.h"
#include "proto/epd/v1/text.h"

namespace epd {
namespace {

std::optional<RecordedOperation> FindOperation(const shm::RecordsView& records, uint64_t op_id) {
  if (op_id == 0) return std::nullopt;
  const shm::OperationRecord& record = records.operation(op_id);
  if (record.op_id.load(std::memory_order_acquire) != op_id) return std::nullopt;
  RecordedOperation found;
  found.op_id = op_id;
  found.outcome = static_cast<shm::Outcome>(record.outcome.load(std::memory_order_acquire));
  found.code = record.code;
  found.cause = text::Read(record.cause);
  return found;
}

}  // namespace

std::optional<PoisonAnswer> DecidePoison(uint64_t word, uint64_t claim,
                                         const std::optional<RecordedOperation>& operation,
                                         const absl::Status& cause) {
  const uint32_t ready = shm::Ready(word);
  if (ready == 0) return std::nullopt;
  const PoisonAnswer dead{static_cast<uint32_t>(cause.code()), std::string(cause.message())};
  if (ready < shm::kFirstClaimId) return dead;
  if (static_cast<uint32_t>(claim) != ready || !operation.has_value()) return dead;
  const auto step = static_cast<shm::Step>(claim >> 32);
  switch (operation->outcome) {
    case shm::Outcome::kGood:
      // The worker has told a staged announce's eager buffers before it wrote the outcome.
      if (step == shm::Step::kPublish || step == shm::Step::kAnnounceStaged ||
          step == shm::Step::kStreamPublish) {
        return PoisonAnswer{};
      }
      return dead;
    case shm::Outcome::kFailed:
      if (operation->code == 0) return dead;
      return PoisonAnswer{operation->code, operation->cause};
    case shm::Outcome::kUndecided:
      return dead;
  }
  return dead;
}

void FailUndecided(const shm::RecordsView& records, const absl::Status& cause) {
  for (shm::OperationRecord& record : records.operations()) {
    if (record.op_id.load(std::memory_order_acquire) == 0) continue;
    if (record.outcome.load(std::memory_order_acquire) !=
        static_cast<uint32_t>(shm::Outcome::kUndecided))
      continue;
    record.code = static_cast<uint32_t>(cause.code());
    text::Write(cause.message(), record.cause);
    record.outcome.store(static_cast<uint32_t>(shm::Outcome::kFailed), std::memory_order_release);
  }
}

namespace {

// Of a submission that is open: what was claimed of it, and its request.
using Decide = std::function<std::optional<PoisonAnswer>(
    uint64_t word, uint64_t claim, uint64_t op_id, const shm::SlotRequest& request)>;

struct EndedCall {
  uint64_t group_id = 0;
  uint32_t code = 0;
};

// Slots of a group, a bit for each.
struct GroupSlots {
  uint64_t used = 0;   // They have been armed.
  uint64_t there = 0;  // Of these, the ones whose pages, and those of their records, were made.
};

// Most clients' slots lie side by side and all have memory, so that two calls of the kernel do for a group.
GroupSlots LookAtGroup(const PoisonTarget& target, uint32_t first, uint32_t end,
                       std::span<shm::SlotRecord> records) {
  GroupSlots group;
  for (uint32_t slot = first; slot < end; ++slot) {
    const bool is_used = target.slots.word(slot).load(std::memory_order_acquire) != 0;
    group.used |= uint64_t{is_used} << (slot - first);
  }
  for (uint64_t left = group.used; left != 0;) {
    const int begin = std::countr_zero(left);
    const int length = std::countr_one(left >> begin);
    const uint64_t run = (~uint64_t{0} >> (64 - length)) << begin;
    const uint32_t slot = first + static_cast<uint32_t>(begin);
    const uint32_t last = slot + static_cast<uint32_t>(length) - 1;
    if (MakePages(&target.slots.slot(slot), &target.slots.slot(last) + 1).ok() &&
        MakePages(&records[slot], &records[last] + 1).ok()) {
      group.there |= run;
    }
    left &= ~run;
  }
  return group;
}

// Ends what is open in slot i, whose page `is_there`, or is made first; nothing where nothing is, or somebody else was first.
std::optional<EndedCall> PoisonSlot(const shm::SlotsView& slots, uint32_t i, bool is_there,
                                    const shm::SlotRecord& record, const Decide& decide) {
  const uint64_t word = slots.word(i).load(std::memory_order_acquire);
  // Nobody has armed it, and its page need not be.
  if (word == 0) return std::nullopt;
  shm::Slot& slot = slots.slot(i);
  if (!is_there && (!MakePages(&slot, &slot + 1).ok() || !MakePages(&record, &record + 1).ok())) {
    // Its client has armed it and never written to it, so nobody waits. What was answered stays so.
    if (shm::Ready(word) != 0)
      shm::Poison(slots.word(i), word, static_cast<uint32_t>(absl::StatusCode::kResourceExhausted));
    return std::nullopt;
  }
  if (shm::Ready(word) == 0) {
    // The worker may have died between its answer and the wake (the slot_word walk found it).
    if (slot.sleeping.load(std::memory_order_seq_cst) != 0) shm::WakeAll(slots.DoneHalf(i));
    return std::nullopt;
  }
  const uint64_t claim = record.claim.load(std::memory_order_acquire);
  const uint64_t op_id = record.op_id.load(std::memory_order_acquire);
  shm::SlotRequest request;
  std::memcpy(&request, &slot.request, sizeof request);
  const std::optional<PoisonAnswer> answer = decide(word, claim, op_id, request);
  if (!answer.has_value()) return std::nullopt;
  // The first failure stays in a slot that a GPU's stream arms until the client has taken it.
  const bool in_stream = slots.IsStreamed(i);
  const bool keeps = in_stream && slot.failed.load(std::memory_order_acquire) != 0;
  if (!keeps) text::Write(answer->message, slot.reply.message);
  if (!shm::Poison(slots.word(i), word, answer->code))
    return std::nullopt;  // The client's own watchdog was first.
  if (in_stream && !keeps) slot.failed.store(answer->code, std::memory_order_release);
  shm::WakeAll(slots.DoneHalf(i));
  return EndedCall{request.group_id, answer->code};
}

}  // namespace

void PoisonGroup(const PoisonTarget& target, uint32_t group, const shm::RecordsView& records,
                 const PoisonCause& cause, Poisoned& poisoned) {
  const Decide decide = [&](uint64_t word, uint64_t claim, uint64_t op_id,
                            const shm::SlotRequest& request) {
    return DecidePoison(word, claim, FindOperation(records, op_id), cause(request));
  };
  const shm::SlotsView& slots = target.slots;
  const uint32_t first = group * shm::kSlotsOfGroup;
  const uint32_t end = std::min(first + shm::kSlotsOfGroup, slots.num_slots());
  // Where there is no memory for them, none of these slots was ever armed.
  if (!MakePages(&slots.word(first), &slots.word(end - 1) + 1).ok()) {
    ++poisoned.num_looked;
    return;
  }
  const std::span<shm::SlotRecord> block = records.block(target.record_index);
  const GroupSlots looked = LookAtGroup(target, first, end, block);
  poisoned.num_looked += std::max<uint64_t>(1, static_cast<uint64_t>(std::popcount(looked.used)));
  for (uint32_t slot = first; slot < end; ++slot) {
    const bool is_there = (looked.there >> (slot - first) & 1) != 0;
    const auto ended = PoisonSlot(slots, slot, is_there, block[slot], decide);
    if (!ended.has_value()) continue;
    ++poisoned.num_ended;
    if (ended->code != 0) ++poisoned.failed_calls[ended->group_id];
  }
}

void MarkEnded(const shm::SlotsView& slots) {
  slots.header().ended.store(1, std::memory_order_seq_cst);
  shm::WakeAll(&slots.header().ended);
}

}  // namespace epd
