// Who may fill which slot of a rank's receive buffer, as a table on the device.
//
// The buffer is cut into segments, one per (local expert, source rank), in that order: the rows of
// one source for one expert. Between the last segment of a zone and the next zone lies padding.
#pragma once

#include <cstdint>

#include "kernels/cuda/thread_position.h"
#include "kernels/host_device.h"
#include "kernels/recv_layout.h"

namespace epd::cuda {

// Whose row belongs in a slot: the `index`th of those of `source` for `expert`. Source -1: padding, and what is beyond.
struct RecvPlace {
  std::int32_t source = -1;
  std::int32_t expert = 0;
  std::int64_t index = 0;
};

struct RecvIndex {
  RoutingSpec spec;                      // expert_owner on the device
  const std::int32_t* counts = nullptr;  // [R, E]
  std::int32_t rank = 0;
  std::int32_t num_locals = 0;  // L, local experts
  // Scratch, filled by the phases below.
  std::int32_t* local_experts = nullptr;  // [L] used under an owner table only
  std::int64_t* zones = nullptr;          // [L + 1] first slots; the last is total_recv
  std::int64_t* segments = nullptr;       // [L, R] first slots

  EPD_HOST_DEVICE std::int32_t Expert(std::int32_t local) const {
    return spec.expert_owner != nullptr ? local_experts[local]
                                        : ContiguousBegin(spec, rank) + local;
  }

  EPD_HOST_DEVICE std::int64_t TotalRecv() const { return zones[num_locals]; }

  EPD_HOST_DEVICE RecvPlace PlaceOf(std::int64_t slot) const {
    if (slot < 0 || slot >= TotalRecv()) return {};
    // The last segment that begins at or before the slot. Empty ones begin where their successor
    // does, so they are passed over.
    std::int64_t low = 0;
    std::int64_t high = std::int64_t{num_locals} * spec.num_ranks;
    while (high - low > 1) {
      const std::int64_t middle = (low + high) / 2;
      if (segments[middle] <= slot) {
        low = middle;
      } else {
        high = middle;
      }
    }
    const auto source = static_cast<std::int32_t>(low % spec.num_ranks);
    const std::int32_t expert = Expert(static_cast<std::int32_t>(low / spec.num_ranks));
    const std::int64_t index = slot - segments[low];
    if (index >= RowsOf(spec, counts, source, expert)) return {};
    return {source, expert, index};
  }

  // The source whose row belongs in `slot`, or -1 for padding and beyond.
  EPD_HOST_DEVICE std::int32_t SourceOf(std::int64_t slot) const { return PlaceOf(slot).source; }
};

inline constexpr int kRecvIndexPhases = 4;

// Fills the index; the threads of one block share the work.
template <int kPhase>
EPD_HOST_DEVICE void FillRecvIndex(const RecvIndex& index, const ThreadPosition& thread) {
  const RoutingSpec& spec = index.spec;
  if constexpr (kPhase == 0) {
    if (thread.index != 0 || spec.expert_owner == nullptr) return;
    std::int32_t local = 0;
    for (std::int32_t e = 0; e < spec.num_experts && local < index.num_locals; ++e) {
      if (ExpertOwner(spec, e) == index.rank) index.local_experts[local++] = e;
    }
  } else if constexpr (kPhase == 1) {
    for (std::int32_t l = thread.index; l < index.num_locals; l += thread.num_threads) {
      index.zones[l] = ZoneSlots(spec, index.counts, index.Expert(l));
    }
  } else if constexpr (kPhase == 2) {
    if (thread.index != 0) return;
    std::int64_t slot = 0;
    for (std::int32_t l = 0; l < index.num_locals; ++l) {
      const std::int64_t slots = index.zones[l];
      index.zones[l] = slot;
      slot += slots;
    }
    index.zones[index.num_locals] = slot;
  } else {
    for (std::int32_t l = thread.index; l < index.num_locals; l += thread.num_threads) {
      std::int64_t slot = index.zones[l];
      for (std::int32_t s = 0; s < spec.num_ranks; ++s) {
        index.segments[std::int64_t{l} * spec.num_ranks + s] = slot;
        slot += RowsOf(spec, index.counts, s, index.Expert(l));
      }
    }
  }
}

}  // namespace epd::cuda
