// What one end of the attach socket does only for an other end that says that it takes it.
#pragma once

#include <cstdint>

namespace epd::features {

// ---- of a client: bits of Attach.features ----

// Slots of further workers (Joined.slots).
inline constexpr uint64_t kTakesSlotsOfFurtherWorkers = 1;
// It goes by kArmed, kStreamed and kUsedGroups of its segment, and takes more than kSlotsPerSession slots (slots_layout.h).
inline constexpr uint64_t kTakesManySlots = 2;
// An arena for all ranks of another worker (Joined.Arena.landing_ranks).
inline constexpr uint64_t kTakesLandingArenas = 4;

// ---- of the daemon's workers: bits of Attached.features ----

// Counts of a rank's own experts behind a gather's stage (region_layout.h).
inline constexpr uint64_t kTakesCountsOfOwnExperts = 1;

}  // namespace epd::features
