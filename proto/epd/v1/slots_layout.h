// Where things lie in a slots segment that epd makes.
//
// Of a client that does not say that it takes more, 256 slots with each word in its slot, as ever. Of others the words
// stand by themselves, a cache line each, 64 to a page: who scans the words of many call sites of a GPU's stream goes
// through few pages, and those of a group of 64 slots that nobody has used are none. The segment is sparse: a slot's
// page comes into being when its client first writes there, and is that session's alone.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "proto/epd/v1/features.h"
#include "proto/epd/v1/limits.h"
#include "proto/epd/v1/segment.h"

namespace epd::shm {

struct SlotsLayout {
  uint32_t num_slots = kSlotsPerSession;
  bool words_apart = false;

  // `num_slots`: what is given to a client that takes them.
  static constexpr SlotsLayout For(uint64_t client_features, uint32_t num_slots) {
    if ((client_features & features::kTakesManySlots) == 0) return {};
    return {.num_slots = std::clamp(num_slots, limits::kMinOpSlots, limits::kMaxOpSlots),
            .words_apart = true};
  }

  static constexpr uint32_t kWordStride = 64;

  constexpr uint64_t words_bytes() const {
    return words_apart ? (uint64_t{num_slots} * kWordStride + 4095) / 4096 * 4096 : 0;
  }
  constexpr Area slots() const {
    return {
        .offset = sizeof(SlotsHeader) + words_bytes(), .stride = sizeof(Slot), .count = num_slots};
  }
  constexpr Area words() const {
    if (words_apart)
      return {.offset = sizeof(SlotsHeader), .stride = kWordStride, .count = num_slots};
    return {.offset = sizeof(SlotsHeader) + offsetof(Slot, word),
            .stride = sizeof(Slot),
            .count = num_slots};
  }
  // Up to 256 slots the marks stand where every reader knows them.
  constexpr Area armed() const {
    return Marks(num_slots > kSlotsPerSession ? offsetof(SlotsHeader, armed_of_many)
                                              : offsetof(SlotsHeader, armed));
  }
  constexpr Area streamed() const {
    return Marks(num_slots > kSlotsPerSession ? offsetof(SlotsHeader, streamed_of_many)
                                              : offsetof(SlotsHeader, streamed));
  }
  constexpr Area used_groups() const {
    return {
        .offset = offsetof(SlotsHeader, used_groups), .stride = 8, .count = words_apart ? 1u : 0u};
  }
  constexpr uint64_t bytes() const { return slots().offset + uint64_t{num_slots} * sizeof(Slot); }

 private:
  constexpr Area Marks(uint64_t offset) const {
    return {
        .offset = offset, .stride = 8, .count = (num_slots + kSlotsOfGroup - 1) / kSlotsOfGroup};
  }
};
static_assert(SlotsLayout{}.bytes() == sizeof(SlotsSegment));
static_assert(SlotsLayout::kWordStride * kSlotsOfGroup == 4096, "a group's words are a page");

}  // namespace epd::shm
