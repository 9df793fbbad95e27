// Finds the areas of a slots segment by its header, which is checked once, when the segment is mapped.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <string>

#include "proto/epd/v1/code.h"
#include "proto/epd/v1/segment.h"

namespace epd::shm {

// The versions of a segment that a reader understands.
struct VersionRange {
  uint32_t min;
  uint32_t max;
};
inline constexpr VersionRange kReadVersions = {.min = 2, .max = kSegmentVersion};

// Why a segment cannot be used; its text has no subject's name in front.
//   UNIMPLEMENTED  it is of a version that the reader does not understand; names both
//   DATA_LOSS      it is no slots segment, or its areas do not lie in it
struct SegmentFault {
  Code code = Code::kOk;
  std::string text;
  bool ok() const { return code == Code::kOk; }
};

// Wakes all who sleep on the word, in any process.
inline void WakeAll(const void* futex) {
  syscall(SYS_futex, futex, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// A mapped slots segment. Keeps its own copy of where things lie: a client may write over the header at any time.
// Borrows the mapping.
class SlotsView {
 public:
  SlotsView() = default;

  // Writes the header of a segment as this version lays it out, of sizeof(SlotsSegment) bytes of zeros.
  static SlotsView Create(void* segment, uint64_t session_id, uint64_t incarnation);
  // Reads the header of `mapped_bytes` that somebody else has laid out.
  static SegmentFault Open(void* segment, uint64_t mapped_bytes, VersionRange reads,
                           SlotsView* view);
  // As Create has laid it out; reads nothing.
  static SlotsView OfThisVersion(void* segment) {
    SlotsView view;
    view.base_ = static_cast<std::byte*>(segment);
    return view;
  }

  SlotsHeader& header() const { return *reinterpret_cast<SlotsHeader*>(base_); }
  // From the header on.
  uint64_t bytes() const { return bytes_; }
  uint32_t num_slots() const { return slots_.count; }
  uint64_t OffsetOfSlot(uint32_t i) const { return OffsetOf(slots_, i); }
  uint64_t OffsetOfWord(uint32_t i) const { return OffsetOf(words_, i); }
  Slot& slot(uint32_t i) const { return *reinterpret_cast<Slot*>(base_ + OffsetOfSlot(i)); }
  std::atomic<uint64_t>& word(uint32_t i) const {
    return *reinterpret_cast<std::atomic<uint64_t>*>(base_ + OffsetOfWord(i));
  }
  // The half of the word that waiters sleep on; 0 while a submission is open.
  uint32_t* DoneHalf(uint32_t i) const {
    return reinterpret_cast<uint32_t*>(base_ + OffsetOfWord(i) + sizeof(uint32_t));
  }
  // Whether a GPU's stream arms the slot.
  bool streamed(uint32_t i) const {
    return (header().streamed[i / 64].load(std::memory_order_relaxed) >> (i % 64) & 1) != 0;
  }
  const Area& eager_buffers() const { return eager_buffers_; }

 private:
  static uint64_t OffsetOf(const Area& area, uint32_t i) {
    return area.offset + uint64_t{area.stride} * i;
  }
  static bool Fits(const Area& area, uint64_t element_bytes, uint64_t alignment, uint64_t bytes) {
    if (area.count == 0 || area.stride < element_bytes) return false;
    if (area.offset % alignment != 0 || area.stride % alignment != 0) return false;
    if (area.offset < sizeof(SlotsHeader) || area.offset > bytes) return false;
    const uint64_t room = bytes - area.offset;
    return room >= element_bytes && (room - element_bytes) / area.stride >= area.count - 1;
  }

  std::byte* base_ = nullptr;
  uint64_t bytes_ = sizeof(SlotsSegment);
  Area slots_ = {.offset = sizeof(SlotsHeader), .stride = sizeof(Slot), .count = kSlotsPerSession};
  Area words_ = {.offset = sizeof(SlotsHeader) + offsetof(Slot, word),
                 .stride = sizeof(Slot),
                 .count = kSlotsPerSession};
  Area eager_buffers_ = {.offset = 0, .stride = kEagerBufferBytes, .count = kMaxEagerBuffers};
};

// The first of what a reader checks, alone because it holds for any layout.
inline SegmentFault CheckVersion(uint32_t version, VersionRange reads) {
  if (version >= reads.min && version <= reads.max) return {};
  std::string known = "version " + std::to_string(reads.min);
  if (reads.max != reads.min)
    known = "versions " + std::to_string(reads.min) + " to " + std::to_string(reads.max);
  return {Code::kUnimplemented, "the slots segment is of version " + std::to_string(version) +
                                    ", this side reads " + known + "; upgrade the older one"};
}

inline SlotsView SlotsView::Create(void* segment, uint64_t session_id, uint64_t incarnation) {
  const SlotsView view = OfThisVersion(segment);
  SlotsHeader& header = view.header();
  header.magic = kSlotsMagic;
  header.version = kSegmentVersion;
  header.header_bytes = sizeof(SlotsHeader);
  header.segment_bytes = sizeof(SlotsSegment);
  header.session_id = session_id;
  header.incarnation = incarnation;
  header.num_areas = 3;
  header.areas[static_cast<uint32_t>(AreaId::kSlots)] = view.slots_;
  header.areas[static_cast<uint32_t>(AreaId::kWords)] = view.words_;
  header.areas[static_cast<uint32_t>(AreaId::kEagerBuffers)] = view.eager_buffers_;
  return view;
}

inline SegmentFault SlotsView::Open(void* segment, uint64_t mapped_bytes, VersionRange reads,
                                    SlotsView* view) {
  const auto lost = [](const char* text) {
    return SegmentFault{Code::kDataLoss, std::string("no slots segment: ") + text};
  };
  if (mapped_bytes < sizeof(SlotsHeader)) return lost("it is shorter than its header");
  SlotsView read = OfThisVersion(segment);
  const SlotsHeader& header = read.header();
  if (header.magic != kSlotsMagic) return lost("it begins with another magic number");
  if (SegmentFault fault = CheckVersion(header.version, reads); !fault.ok()) return fault;
  read.bytes_ = header.segment_bytes;
  if (header.header_bytes < sizeof(SlotsHeader) || read.bytes_ > mapped_bytes) {
    return lost("its sizes are wrong");
  }
  if (header.num_areas < 3 || header.num_areas > kMaxAreas) return lost("its areas are wrong");
  // Copies: what is checked is what is used.
  read.slots_ = header.areas[static_cast<uint32_t>(AreaId::kSlots)];
  read.words_ = header.areas[static_cast<uint32_t>(AreaId::kWords)];
  read.eager_buffers_ = header.areas[static_cast<uint32_t>(AreaId::kEagerBuffers)];
  if (!Fits(read.slots_, sizeof(Slot), alignof(Slot), read.bytes_) ||
      read.slots_.count > kSlotsPerSession) {
    return lost("its slots do not lie in it");
  }
  if (!Fits(read.words_, sizeof(uint64_t), alignof(std::atomic<uint64_t>), read.bytes_) ||
      read.words_.count != read.slots_.count) {
    return lost("its words do not lie in it");
  }
  const Area& eager = read.eager_buffers_;
  if (eager.count > kMaxEagerBuffers || eager.offset % 64 != 0 || eager.stride % 64 != 0 ||
      eager.offset > UINT32_MAX) {
    return lost("its eager buffers are wrong");
  }
  *view = read;
  return {};
}

}  // namespace epd::shm
