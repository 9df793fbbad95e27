#include "daemon/worker/shell/session_slots.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/epd/v1/slot_word.h"
#include "proto/epd/v1/text.h"
#include "proto/failpoint/failpoint.h"

namespace epd {

absl::StatusOr<SessionSlots> SessionSlots::Open(SessionId session, uint32_t record_index,
                                                const UniqueFd& segment, UniqueFd wakeup,
                                                OutcomeRecords& records) {
  if (record_index >= shm::kMaxSessions) {
    return absl::InvalidArgumentError(
        absl::StrCat("record_index is ", record_index, ", expected less than ", shm::kMaxSessions));
  }
  absl::StatusOr<Mapping> mapping = Mapping::Open(segment, sizeof(shm::SlotsHeader));
  if (!mapping.ok()) return mapping.status();
  SessionSlots slots;
  slots.session_ = session;
  slots.record_index_ = record_index;
  slots.mapping_ = *std::move(mapping);
  slots.wakeup_ = std::move(wakeup);
  slots.records_ = &records;
  if (const shm::SegmentFault fault = shm::SlotsView::Open(
          slots.mapping_.data(), slots.mapping_.bytes(), shm::kReadVersions, &slots.view_);
      !fault.ok()) {
    return absl::Status(static_cast<absl::StatusCode>(fault.code), fault.text);
  }
  if (const uint64_t other = slots.view_.header().session_id; other != session.value) {
    return absl::DataLossError(
        absl::StrCat("the slots segment is of session ", other, ", expected ", session.value));
  }
  for (uint32_t slot = 0; slot < slots.view_.num_slots(); ++slot) {
    slots.last_claim_[slot] = records.LastClaim(record_index, slot);
  }
  return slots;
}

int SessionSlots::TakeArmed(const Taker& take) {
  int taken = 0;
  for (uint32_t word = 0; word < shm::kSlotsPerSession / 64; ++word) {
    std::atomic<uint64_t>& armed = view_.header().armed[word];
    if (armed.load(std::memory_order_relaxed) == 0) continue;
    uint64_t bits = armed.exchange(0, std::memory_order_acq_rel);
    for (; bits != 0; bits &= bits - 1) {
      taken += TakeSlot(word * 64 + static_cast<uint32_t>(std::countr_zero(bits)), take);
    }
  }
  return taken + TakeStreamed(take);
}

int SessionSlots::TakeStreamed(const Taker& take) {
  int taken = 0;
  for (uint32_t word = 0; word < shm::kSlotsPerSession / 64; ++word) {
    uint64_t bits = view_.header().streamed[word].load(std::memory_order_acquire);
    for (; bits != 0; bits &= bits - 1) {
      taken += TakeSlot(word * 64 + static_cast<uint32_t>(std::countr_zero(bits)), take);
    }
  }
  return taken;
}

// Who waits in a stream reads no text: there the first failure stays until the client has taken it.
void SessionSlots::WriteReason(uint32_t index, const absl::Status& status) {
  shm::Slot& slot = view_.slot(index);
  if (!view_.streamed(index)) return text::Write(status.message(), slot.reply.message);
  if (status.ok() || slot.failed.load(std::memory_order_acquire) != 0) return;
  text::Write(status.message(), slot.reply.message);
  slot.failed.store(static_cast<uint32_t>(status.code()), std::memory_order_release);
}

bool SessionSlots::has_streams() const {
  for (const std::atomic<uint64_t>& word : view_.header().streamed) {
    if (word.load(std::memory_order_relaxed) != 0) return true;
  }
  return false;
}

bool SessionSlots::has_streams_of(GroupId group) const {
  for (uint32_t slot = 0; slot < view_.num_slots(); ++slot) {
    if (view_.streamed(slot) && view_.slot(slot).request.group_id == group.value) return true;
  }
  return false;
}

int SessionSlots::TakeAll(const Taker& take) {
  int taken = 0;
  for (uint32_t slot = 0; slot < view_.num_slots(); ++slot) taken += TakeSlot(slot, take);
  return taken;
}

bool SessionSlots::TakeSlot(uint32_t index, const Taker& take) {
  if (index >= view_.num_slots()) return false;
  const shm::Slot& slot = view_.slot(index);
  std::atomic<uint64_t>& word = view_.word(index);
  if (word.load(std::memory_order_acquire) != shm::kArmed) return false;
  uint32_t& id = last_claim_[index];
  id = id == UINT32_MAX ? shm::kFirstClaimId : std::max(id + 1, shm::kFirstClaimId);
  records_->WriteClaim(record_index_, index, slot.request.step, id);
  EPD_FAILPOINT("worker.slot.claim");
  if (!shm::Claim(word, id)) return false;
  EPD_FAILPOINT("worker.slot.claimed");
  // Copied after the claim: before it, the submission might have been ended and armed anew.
  shm::SlotRequest request;
  std::memcpy(&request, &slot.request, sizeof request);
  take(Submission{.session = session_, .slot = index, .claim = id}, request);
  return true;
}

void SessionSlots::Answer(const AnswerSubmission& answer) {
  shm::Slot& slot = view_.slot(answer.submission.slot);
  std::atomic<uint64_t>& word = view_.word(answer.submission.slot);
  // A submission that somebody else ended keeps its reply.
  if (word.load(std::memory_order_acquire) != shm::Claimed(answer.submission.claim)) return;
  EPD_FAILPOINT("worker.slot.answer");
  shm::SlotReply& reply = slot.reply;
  reply.op_id = answer.operation.value;
  reply.region_offset = answer.region.offset;
  reply.region_bytes = answer.region.bytes;
  reply.out_offset = answer.region.out_offset;
  reply.out_bytes = answer.region.out_bytes;
  slot.eager.offset = answer.region.eager.offset;
  slot.eager.num_eager_buffers = answer.region.eager.num_eager_buffers;
  reply.plan_id = answer.plan_id;
  if (answer.plan_name.has_value()) slot.plan_name = *answer.plan_name;
  slot.direct = {.generation = answer.direct_generation,
                 .met = answer.met ? 1u : 0u,
                 .execution = answer.direct_execution.value_or(0)};
  if (!answer.repeats) WriteReason(answer.submission.slot, answer.status);
  if (shm::Answer(word, answer.submission.claim, static_cast<uint32_t>(answer.status.code()))) {
    EPD_FAILPOINT("worker.slot.answered");
    Wake(answer.submission.slot);
  }
}

void SessionSlots::Tell(const NameEagerBuffers& eager) {
  shm::Slot& slot = view_.slot(eager.submission.slot);
  const uint64_t word = view_.word(eager.submission.slot).load(std::memory_order_acquire);
  if (word != shm::Claimed(eager.submission.claim)) return;
  slot.reply.op_id = eager.operation.value;
  std::copy(eager.eager_buffer_of_rank.begin(), eager.eager_buffer_of_rank.end(),
            slot.eager.eager_buffer_of_rank);
  EPD_FAILPOINT("worker.eager.told");
  slot.eager.good = 1;
}

void SessionSlots::AbortOpenSubmissions(const absl::Status& status) {
  for (uint32_t i = 0; i < view_.num_slots(); ++i) {
    const uint64_t word = view_.word(i).load(std::memory_order_acquire);
    if (shm::Ready(word) == 0) continue;
    WriteReason(i, status);
    if (shm::Poison(view_.word(i), word, static_cast<uint32_t>(status.code()))) Wake(i);
  }
}

// The other half of Dekker's handshake is the client's: it sets `sleeping`, fences, reads the word.
void SessionSlots::Wake(uint32_t index) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (view_.slot(index).sleeping.load(std::memory_order_relaxed) == 0) return;
  shm::WakeAll(view_.DoneHalf(index));
}

void SessionSlots::SetAsleep(bool asleep) {
  view_.header().asleep.store(asleep ? 1 : 0, std::memory_order_relaxed);
}

}  // namespace epd
