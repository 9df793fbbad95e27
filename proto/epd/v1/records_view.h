// Finds what is in a segment of outcome records by its header. epd writes it, and no client maps it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <span>

#include "proto/epd/v1/limits.h"
#include "proto/epd/v1/segment.h"

namespace epd::shm {

// RecordsHeader::touched of a user.
constexpr uint64_t TouchedBy(uint32_t uid) { return uint64_t{uid} + 1; }

// Borrows the mapping.
class RecordsView {
 public:
  RecordsView() = default;
  // As Create has laid it out; reads nothing.
  static RecordsView Of(void* segment, uint64_t bytes) {
    RecordsView view;
    view.header_ = static_cast<RecordsHeader*>(segment);
    view.num_slots_ = static_cast<uint32_t>((bytes - OperationsOffset(0) - kOperationsBytes) /
                                            (kMaxSessions * sizeof(SlotRecord)));
    return view;
  }

  // `num_slots`: of a session.
  static constexpr uint64_t BytesFor(uint32_t num_slots) {
    return OperationsOffset(BlockSlots(num_slots)) + kOperationsBytes;
  }
  // Up to here nothing but what a session's slots have; what is behind belongs to nobody in particular.
  static constexpr uint64_t OperationsOffsetFor(uint32_t num_slots) {
    return OperationsOffset(BlockSlots(num_slots));
  }
  // Writes the header of BytesFor(num_slots) bytes of zeros.
  static RecordsView Create(void* segment, uint32_t num_slots) {
    const RecordsView view = Of(segment, BytesFor(num_slots));
    new (segment) RecordsHeader{.magic = kRecordsMagic,
                                .version = kSegmentVersion,
                                .header_bytes = sizeof(RecordsHeader),
                                .segment_bytes = BytesFor(num_slots),
                                .max_sessions = kMaxSessions,
                                .slots_per_session = BlockSlots(num_slots),
                                .max_operations = kMaxOperations,
                                .touched = 0};
    return view;
  }
  // False: they are none of this version, or not of these bytes.
  static bool Open(void* segment, uint64_t bytes, RecordsView* view) {
    if (bytes < sizeof(RecordsHeader)) return false;
    auto* const header = static_cast<RecordsHeader*>(segment);
    const uint32_t slots = header->slots_per_session;
    if (header->magic != kRecordsMagic || header->version != kSegmentVersion || slots == 0 ||
        slots > limits::kMaxOpSlots || slots != BlockSlots(slots) || bytes != BytesFor(slots) ||
        header->max_sessions != kMaxSessions || header->max_operations != kMaxOperations) {
      return false;
    }
    *view = Of(segment, bytes);
    return true;
  }

  const RecordsHeader& header() const { return *header_; }
  uint64_t touched() const { return header_->touched.load(std::memory_order_relaxed); }
  void SetTouched(uint64_t user) const { header_->touched.store(user, std::memory_order_relaxed); }
  // The most that a session may have.
  uint32_t num_slots() const { return num_slots_; }
  // Of a session; [num_slots()], whole pages.
  std::span<SlotRecord> block(uint32_t record_index) const {
    auto* const first = reinterpret_cast<SlotRecord*>(reinterpret_cast<std::byte*>(header_) +
                                                      sizeof(RecordsHeader));
    return {first + uint64_t{record_index} * num_slots_, num_slots_};
  }
  std::span<OperationRecord> operations() const {
    return {reinterpret_cast<OperationRecord*>(reinterpret_cast<std::byte*>(header_) +
                                               OperationsOffset(num_slots_)),
            kMaxOperations};
  }
  OperationRecord& operation(uint64_t op_id) const { return operations()[op_id % kMaxOperations]; }

 private:
  static constexpr uint64_t kOperationsBytes = kMaxOperations * sizeof(OperationRecord);
  static constexpr uint32_t BlockSlots(uint32_t num_slots) {
    return (num_slots + kSlotsPerSession - 1) / kSlotsPerSession * kSlotsPerSession;
  }
  static constexpr uint64_t OperationsOffset(uint32_t block_slots) {
    return sizeof(RecordsHeader) + uint64_t{kMaxSessions} * block_slots * sizeof(SlotRecord);
  }

  RecordsHeader* header_ = nullptr;
  uint32_t num_slots_ = kSlotsPerSession;
};
static_assert(RecordsView::BytesFor(kSlotsPerSession) == sizeof(RecordsSegment));
static_assert(kSlotsPerSession * sizeof(SlotRecord) == 4096);

}  // namespace epd::shm
