// Where rows of this process may stand before their operation is admitted.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "proto/epd/v1/eager_layout.h"
#include "proto/epd/v1/segment.h"

namespace epd::client {

// The eager buffers of a formation's arenas. The worker's replies tell where they are, and how many; until the first of them
// there are none. Thread-safe.
class EagerBuffers {
 public:
  // What a good reply says, with where the segment's header has them. Nothing where the set has no eager buffers, or
  // the worker writes nonsense.
  void Learn(const shm::SlotEagerBuffers& told, const shm::Area& area) {
    const uint64_t units = told.offset / kUnit;
    if (told.num_eager_buffers == 0 || told.num_eager_buffers > shm::kMaxEagerBuffers) return;
    if (told.offset % kUnit != 0 || units >= (UINT64_MAX >> kCountBits) - area.offset / kUnit)
      return;
    packed_.store((units + area.offset / kUnit) << kCountBits | told.num_eager_buffers,
                  std::memory_order_relaxed);
  }

  // Of each arena.
  uint32_t count() const {
    return static_cast<uint32_t>(packed_.load(std::memory_order_relaxed) & kCounts);
  }

  // How many in a row a call takes for rows of so many bytes; 0: it goes without.
  uint32_t NumFor(uint64_t stage_bytes, const shm::Area& area) {
    if (area.stride == 0 || count() == 0) return 0;
    const uint64_t num = shm::NumBuffersOf(stage_bytes, area.stride);
    if (num == 1) return 1;
    if (count() <= shm::kFewEagerBuffers || num > count() / shm::kEagerCallsAtLeast) return 0;
    return IsInVain() ? 0 : static_cast<uint32_t>(num);
  }

  // Whether rows of several buffers were taken from there. Where peers bring none, as those whose rows are too large do, they
  // are staged twice, so most calls then go without for a while.
  void NoteLarge(bool taken) {
    if (taken) {
      num_in_vain_.store(0, std::memory_order_relaxed);
    } else {
      num_in_vain_.fetch_add(1, std::memory_order_relaxed);
    }
  }

  // In every arena of the set, of an eager buffer, of this process or of a peer, who may have heard of more.
  std::optional<uint64_t> OffsetOf(uint64_t index, const shm::Area& area) const {
    const uint64_t packed = packed_.load(std::memory_order_relaxed);
    if ((packed & kCounts) == 0 || index >= shm::kMaxEagerBuffers) return {};
    return (packed >> kCountBits) * kUnit + index * area.stride;
  }

 private:
  static constexpr int kCountBits = 8;
  static constexpr uint64_t kCounts = (1u << kCountBits) - 1;
  static_assert(shm::kMaxEagerBuffers <= kCounts);
  static constexpr uint64_t kUnit = 64;
  static constexpr uint32_t kInVain = 3;
  static constexpr uint32_t kTriedOf = 32;

  bool IsInVain() {
    return num_in_vain_.load(std::memory_order_relaxed) >= kInVain &&
           num_not_tried_.fetch_add(1, std::memory_order_relaxed) % kTriedOf != kTriedOf - 1;
  }

  std::atomic<uint64_t> packed_ = 0;
  std::atomic<uint32_t> num_in_vain_ = 0;  // In a row.
  std::atomic<uint32_t> num_not_tried_ = 0;
};

}  // namespace epd::client
