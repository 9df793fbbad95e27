// Finds the areas of a slots segment by its header, which is checked once, when the segment is mapped.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <string>

#include "proto/epd/v1/code.h"
#include "proto/epd/v1/segment.h"
#include "proto/epd/v1/slots_layout.h"

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

  // Writes the header of a segment that is laid out so, of layout.bytes() zeros.
  static SlotsView Create(void* segment, uint64_t session_id, uint64_t incarnation,
                          const SlotsLayout& layout = {});
  // Reads the header of `mapped_bytes` that somebody else has laid out.
  static SegmentFault Open(void* segment, uint64_t mapped_bytes, VersionRange reads,
                           SlotsView* view);
  // As Create has laid it out; reads nothing.
  static SlotsView Of(void* segment, const SlotsLayout& layout) {
    SlotsView view;
    view.base_ = static_cast<std::byte*>(segment);
    view.bytes_ = layout.bytes();
    view.slots_ = layout.slots();
    view.words_ = layout.words();
    view.armed_ = layout.armed();
    view.streamed_ = layout.streamed();
    view.used_groups_ = layout.used_groups();
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
  // The marks of a group of 64 slots, those of AreaId::kArmed and kStreamed.
  std::atomic<uint64_t>& armed(uint32_t group) const { return Word(armed_, group); }
  std::atomic<uint64_t>& streamed(uint32_t group) const { return Word(streamed_, group); }
  // Whether a GPU's stream arms slot i.
  bool IsStreamed(uint32_t i) const {
    return (streamed(i / kSlotsOfGroup).load(std::memory_order_relaxed) >> (i % kSlotsOfGroup) &
            1) != 0;
  }
  // A bit per group, of those that may be in use.
  uint64_t UsedGroups() const {
    const uint64_t all = ~uint64_t{0} >> (64 - armed_.count);
    return used_groups_.count == 0 ? all
                                   : all & Word(used_groups_, 0).load(std::memory_order_acquire);
  }
  // Before a slot of the group is armed for the first time.
  void UseGroup(uint32_t group) const {
    if (used_groups_.count == 0) return;
    Word(used_groups_, 0).fetch_or(uint64_t{1} << group, std::memory_order_seq_cst);
  }
  // Calls do(group) for each that may be in use.
  template <typename Do>
  void ForEachUsedGroup(Do act) const {
    for (uint64_t groups = UsedGroups(); groups != 0; groups &= groups - 1)
      act(static_cast<uint32_t>(std::countr_zero(groups)));
  }
  // Calls do(slot) for each slot of them.
  template <typename Do>
  void ForEachUsedSlot(Do act) const {
    ForEachUsedGroup([&](uint32_t group) {
      const uint32_t first = group * kSlotsOfGroup;
      const uint32_t end = std::min(first + kSlotsOfGroup, num_slots());
      for (uint32_t slot = first; slot < end; ++slot) act(slot);
    });
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
  // Of marks, which may stand in the header.
  static bool WordsFit(const Area& area, uint32_t count, uint64_t bytes) {
    return area.count == count && area.stride == sizeof(uint64_t) &&
           area.offset % sizeof(uint64_t) == 0 && area.offset <= bytes &&
           bytes - area.offset >= uint64_t{count} * sizeof(uint64_t);
  }
  // Where the segment says nothing of marks, they stand where every reader knows them.
  bool ReadMarks();
  std::atomic<uint64_t>& Word(const Area& area, uint32_t i) const {
    return *reinterpret_cast<std::atomic<uint64_t>*>(base_ + OffsetOf(area, i));
  }

  std::byte* base_ = nullptr;
  uint64_t bytes_ = sizeof(SlotsSegment);
  Area slots_ = SlotsLayout{}.slots();
  Area words_ = SlotsLayout{}.words();
  Area armed_ = SlotsLayout{}.armed();
  Area streamed_ = SlotsLayout{}.streamed();
  Area used_groups_ = SlotsLayout{}.used_groups();
  Area eager_buffers_ = {.offset = 0, .stride = kEagerBufferBytes, .count = kFewEagerBuffers};
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

inline SlotsView SlotsView::Create(void* segment, uint64_t session_id, uint64_t incarnation,
                                   const SlotsLayout& layout) {
  const SlotsView view = Of(segment, layout);
  SlotsHeader& header = view.header();
  header.magic = kSlotsMagic;
  header.version = kSegmentVersion;
  header.header_bytes = sizeof(SlotsHeader);
  header.segment_bytes = layout.bytes();
  header.session_id = session_id;
  header.incarnation = incarnation;
  // Those who know three read no more.
  header.num_areas = layout.words_apart ? 6 : 3;
  header.areas[static_cast<uint32_t>(AreaId::kSlots)] = view.slots_;
  header.areas[static_cast<uint32_t>(AreaId::kWords)] = view.words_;
  header.areas[static_cast<uint32_t>(AreaId::kEagerBuffers)] = view.eager_buffers_;
  if (!layout.words_apart) return view;
  header.areas[static_cast<uint32_t>(AreaId::kArmed)] = view.armed_;
  header.areas[static_cast<uint32_t>(AreaId::kStreamed)] = view.streamed_;
  header.areas[static_cast<uint32_t>(AreaId::kUsedGroups)] = view.used_groups_;
  return view;
}

inline SegmentFault SlotsView::Open(void* segment, uint64_t mapped_bytes, VersionRange reads,
                                    SlotsView* view) {
  const auto lost = [](const char* text) {
    return SegmentFault{Code::kDataLoss, std::string("no slots segment: ") + text};
  };
  if (mapped_bytes < sizeof(SlotsHeader)) return lost("it is shorter than its header");
  SlotsView read = Of(segment, {});
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
      read.slots_.count > limits::kMaxOpSlots) {
    return lost("its slots do not lie in it");
  }
  if (!Fits(read.words_, sizeof(uint64_t), alignof(std::atomic<uint64_t>), read.bytes_) ||
      read.words_.count != read.slots_.count) {
    return lost("its words do not lie in it");
  }
  if (!read.ReadMarks()) return lost("its marks do not lie in it");
  const Area& eager = read.eager_buffers_;
  if (eager.count > kMaxEagerBuffers || eager.offset % 64 != 0 || eager.stride % 64 != 0 ||
      eager.offset > UINT32_MAX) {
    return lost("its eager buffers are wrong");
  }
  *view = read;
  return {};
}

inline bool SlotsView::ReadMarks() {
  const uint32_t num_groups = (slots_.count + kSlotsOfGroup - 1) / kSlotsOfGroup;
  if (header().num_areas <= static_cast<uint32_t>(AreaId::kUsedGroups)) {
    armed_.count = streamed_.count = num_groups;
    return slots_.count <= kSlotsPerSession;
  }
  armed_ = header().areas[static_cast<uint32_t>(AreaId::kArmed)];
  streamed_ = header().areas[static_cast<uint32_t>(AreaId::kStreamed)];
  used_groups_ = header().areas[static_cast<uint32_t>(AreaId::kUsedGroups)];
  return WordsFit(armed_, num_groups, bytes_) && WordsFit(streamed_, num_groups, bytes_) &&
         WordsFit(used_groups_, 1, bytes_);
}

}  // namespace epd::shm
