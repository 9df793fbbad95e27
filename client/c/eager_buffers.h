// Where small rows of this process may stand before their operation is admitted.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "proto/epd/v1/segment.h"

namespace epd::client {

// The eager buffers of a formation's arenas, one for each of the first slots. The worker's replies tell
// where they are; until the first of them there are none. Thread-safe.
class EagerBuffers {
 public:
  // What a good reply says, with where the segment's header has them. Nothing where the set has no eager buffers, or
  // the worker writes nonsense.
  void Learn(const shm::SlotEagerBuffers& told, const shm::Area& area) {
    const uint64_t units = told.offset / kUnit;
    if (told.num_eager_buffers == 0 || told.num_eager_buffers > area.count) return;
    if (told.offset % kUnit != 0 || units >= (UINT64_MAX >> kCountBits) - area.offset / kUnit)
      return;
    packed_.store((units + area.offset / kUnit) << kCountBits | told.num_eager_buffers,
                  std::memory_order_relaxed);
  }

  // In every arena of the set, of the eager buffer that belongs to a slot, of this process or of a peer.
  std::optional<uint64_t> OffsetOf(int slot, const shm::Area& area) const {
    const uint64_t packed = packed_.load(std::memory_order_relaxed);
    if (slot < 0 || static_cast<uint64_t>(slot) >= (packed & ((1u << kCountBits) - 1))) return {};
    return (packed >> kCountBits) * kUnit + static_cast<uint64_t>(slot) * area.stride;
  }

 private:
  static constexpr int kCountBits = 8;
  static constexpr uint64_t kUnit = 64;

  std::atomic<uint64_t> packed_ = 0;
};

}  // namespace epd::client
