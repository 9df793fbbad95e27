#include "daemon/worker/shell/session_slots.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/shared_memory/pages.h"
#include "proto/epd/v1/slot_word.h"
#include "proto/epd/v1/text.h"
#include "proto/failpoint/failpoint.h"

namespace epd {
namespace {

constexpr uint32_t kMaxGroups = limits::kMaxOpSlots / shm::kSlotsOfGroup;

}  // namespace

absl::StatusOr<SessionSlots> SessionSlots::Open(const Options& options, const UniqueFd& segment,
                                                UniqueFd wakeup, OutcomeRecords& records) {
  if (options.record_index >= shm::kMaxSessions) {
    return absl::InvalidArgumentError(absl::StrCat("record_index is ", options.record_index,
                                                   ", expected less than ", shm::kMaxSessions));
  }
  absl::StatusOr<Mapping> mapping = Mapping::Open(segment, sizeof(shm::SlotsHeader));
  if (!mapping.ok()) return mapping.status();
  SessionSlots slots;
  slots.session_ = options.session;
  slots.uid_ = options.uid;
  slots.record_index_ = options.record_index;
  slots.mapping_ = *std::move(mapping);
  slots.guard_ = PageGuard(slots.mapping_.data(), slots.mapping_.bytes());
  slots.wakeup_ = std::move(wakeup);
  slots.records_ = &records;
  const TouchedUser::Scope touch = slots.Touch();
  slots.has_device_ = options.has_device;
  if (const shm::SegmentFault fault = shm::SlotsView::Open(
          slots.mapping_.data(), slots.mapping_.bytes(), shm::kReadVersions, &slots.view_);
      !fault.ok()) {
    return absl::Status(static_cast<absl::StatusCode>(fault.code), fault.text);
  }
  if (const uint64_t other = slots.view_.header().session_id; other != options.session.value) {
    return absl::DataLossError(absl::StrCat("the slots segment is of session ", other,
                                            ", expected ", options.session.value));
  }
  // What lies behind a session's block is another session's.
  if (slots.view_.num_slots() > records.num_slots()) {
    return absl::DataLossError(absl::StrCat("the slots segment has ", slots.view_.num_slots(),
                                            " slots, expected at most ", records.num_slots()));
  }
  slots.has_pages_.resize(slots.view_.num_slots());
  return slots;
}

template <typename Do>
void SessionSlots::ForEachUsedSlot(Do act) {
  for (uint64_t groups = UsedGroups(); groups != 0; groups &= groups - 1) {
    const uint32_t first = static_cast<uint32_t>(std::countr_zero(groups)) * shm::kSlotsOfGroup;
    const uint32_t end = std::min(first + shm::kSlotsOfGroup, view_.num_slots());
    for (uint32_t slot = first; slot < end; ++slot) act(slot);
  }
}

// A turn of the worker takes no more from one session than it gives others to wait for.
int SessionSlots::TakeArmed(int enough, const Taker& take) {
  if (!served_) return 0;
  const TouchedUser::Scope touch = Touch();
  int taken = 0;
  const uint64_t used = UsedGroups();
  const uint64_t before = (uint64_t{1} << next_group_) - 1;
  for (uint64_t groups : {used & ~before, used & before}) {
    for (; groups != 0; groups &= groups - 1) {
      const auto group = static_cast<uint32_t>(std::countr_zero(groups));
      taken += TakeGroup(group, take);
      if (taken < enough) continue;
      next_group_ = (group + 1) % kMaxGroups;
      return taken;
    }
  }
  return taken;
}

int SessionSlots::TakeGroup(uint32_t group, const Taker& take) {
  std::atomic<uint64_t>& armed = view_.armed(group);
  // A stream marks nothing when it arms a slot: each of its slots is looked at.
  uint64_t marks = has_device_ ? view_.streamed(group).load(std::memory_order_acquire) : 0;
  if (armed.load(std::memory_order_relaxed) != 0)
    marks |= armed.exchange(0, std::memory_order_acq_rel);
  int taken = 0;
  for (; marks != 0; marks &= marks - 1) {
    const auto of_group = static_cast<uint32_t>(std::countr_zero(marks));
    taken += TakeSlot(group * shm::kSlotsOfGroup + of_group, take);
  }
  return taken;
}

uint64_t SessionSlots::UsedGroups() {
  const uint64_t used = view_.UsedGroups();
  for (uint64_t unseen = used & ~groups_with_words_; unseen != 0; unseen &= unseen - 1) {
    const auto group = static_cast<uint32_t>(std::countr_zero(unseen));
    const uint32_t first = group * shm::kSlotsOfGroup;
    const uint32_t last = std::min(first + shm::kSlotsOfGroup, view_.num_slots()) - 1;
    if (Note(MakePages(&view_.word(first), &view_.word(last) + 1)))
      groups_with_words_ |= uint64_t{1} << group;
  }
  return used & groups_with_words_;
}

bool SessionSlots::CanTouch(uint32_t index) {
  if (has_pages_[index]) return true;
  has_pages_[index] = Note(MakePages(&view_.slot(index), &view_.slot(index) + 1)) &&
                      Note(records_->MakePageOf(record_index_, index));
  return has_pages_[index];
}

absl::Status SessionSlots::TakeTrouble() {
  if (guard_.lost()) {
    Note(absl::ResourceExhaustedError(
        "somebody has taken one away, and the node has no memory for another (EFAULT)"));
  }
  return std::exchange(trouble_, absl::OkStatus());
}

bool SessionSlots::Note(const absl::Status& made) {
  if (!made.ok() && std::exchange(served_, false)) {
    trouble_ = absl::Status(
        made.code(),
        absl::StrCat("session ", session_.value, " has op slots without pages: ", made.message()));
  }
  return made.ok();
}

// Who waits in a stream reads no text: there the first failure stays until the client has taken it.
void SessionSlots::WriteReason(uint32_t index, const absl::Status& status) {
  shm::Slot& slot = view_.slot(index);
  if (!view_.IsStreamed(index)) return text::Write(status.message(), slot.reply.message);
  if (status.ok() || slot.failed.load(std::memory_order_acquire) != 0) return;
  text::Write(status.message(), slot.reply.message);
  slot.failed.store(static_cast<uint32_t>(status.code()), std::memory_order_release);
}

bool SessionSlots::has_streams() const {
  bool found = false;
  if (!has_device_) return false;
  const TouchedUser::Scope touch = Touch();
  view_.ForEachUsedGroup(
      [&](uint32_t group) { found |= view_.streamed(group).load(std::memory_order_relaxed) != 0; });
  return found;
}

bool SessionSlots::has_streams_of(GroupId group) {
  bool found = false;
  if (!has_device_) return false;
  const TouchedUser::Scope touch = Touch();
  ForEachUsedSlot([&](uint32_t slot) {
    found |= view_.IsStreamed(slot) && CanTouch(slot) &&
             view_.slot(slot).request.group_id == group.value;
  });
  return found;
}

void SessionSlots::MarkArmed() {
  const TouchedUser::Scope touch = Touch();
  ForEachUsedSlot([&](uint32_t slot) {
    if (view_.word(slot).load(std::memory_order_acquire) != shm::kArmed) return;
    view_.armed(slot / shm::kSlotsOfGroup)
        .fetch_or(uint64_t{1} << (slot % shm::kSlotsOfGroup), std::memory_order_release);
  });
}

bool SessionSlots::TakeSlot(uint32_t index, const Taker& take) {
  if (index >= view_.num_slots()) return false;
  std::atomic<uint64_t>& word = view_.word(index);
  if (word.load(std::memory_order_acquire) != shm::kArmed || !CanTouch(index)) return false;
  const shm::Slot& slot = view_.slot(index);
  // Out of memory that no client maps, an earlier worker's included.
  const uint32_t last = records_->LastClaim(record_index_, index);
  const uint32_t id =
      last == UINT32_MAX ? shm::kFirstClaimId : std::max(last + 1, shm::kFirstClaimId);
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
  const TouchedUser::Scope touch = Touch();
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
  const TouchedUser::Scope touch = Touch();
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
  const TouchedUser::Scope touch = Touch();
  ForEachUsedSlot([&](uint32_t i) {
    const uint64_t word = view_.word(i).load(std::memory_order_acquire);
    if (shm::Ready(word) == 0) return;
    const bool has_page = CanTouch(i);
    if (has_page) WriteReason(i, status);
    if (shm::Poison(view_.word(i), word, static_cast<uint32_t>(status.code())) && has_page) Wake(i);
  });
}

// The other half of Dekker's handshake is the client's: it sets `sleeping`, fences, reads the word.
void SessionSlots::Wake(uint32_t index) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (view_.slot(index).sleeping.load(std::memory_order_relaxed) == 0) return;
  shm::WakeAll(view_.DoneHalf(index));
}

void SessionSlots::SetAsleep(bool asleep) {
  const TouchedUser::Scope touch = Touch();
  view_.header().asleep.store(asleep ? 1 : 0, std::memory_order_relaxed);
}

}  // namespace epd
