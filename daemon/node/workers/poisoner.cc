#include "daemon/node/workers/poisoner.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "daemon/core/pages.h"
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

// Ends what is open in slot i; nothing where nothing is, or somebody else was first.
std::optional<EndedCall> PoisonSlot(const shm::SlotsView& slots, uint32_t i,
                                    const shm::SlotRecord& record, const Decide& decide) {
  const uint64_t word = slots.word(i).load(std::memory_order_acquire);
  // Nobody has armed it, and its page need not be.
  if (word == 0) return std::nullopt;
  shm::Slot& slot = slots.slot(i);
  if (!MakePages(&slot, &slot + 1).ok() || !MakePages(&record, &record + 1).ok()) {
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

Poisoned PoisonSession(const shm::SlotsView& slots, const shm::RecordsView& records,
                       uint32_t record_index, const PoisonCause& cause) {
  const Decide decide = [&](uint64_t word, uint64_t claim, uint64_t op_id,
                            const shm::SlotRequest& request) {
    return DecidePoison(word, claim, FindOperation(records, op_id), cause(request));
  };
  Poisoned poisoned;
  slots.ForEachUsedGroup([&](uint32_t group) {
    const uint32_t first = group * shm::kSlotsOfGroup;
    const uint32_t end = std::min(first + shm::kSlotsOfGroup, slots.num_slots());
    // Where there is no memory for them, none of these slots was ever armed.
    if (!MakePages(&slots.word(first), &slots.word(end - 1) + 1).ok()) return;
    for (uint32_t slot = first; slot < end; ++slot) {
      const auto ended = PoisonSlot(slots, slot, records.block(record_index)[slot], decide);
      if (!ended.has_value()) continue;
      ++poisoned.num_ended;
      if (ended->code != 0) ++poisoned.failed_calls[ended->group_id];
    }
  });
  return poisoned;
}

void MarkEnded(const shm::SlotsView& slots) {
  slots.header().ended.store(1, std::memory_order_seq_cst);
  shm::WakeAll(&slots.header().ended);
}

}  // namespace epd
