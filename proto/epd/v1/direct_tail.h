// What stands behind the staging of an arena whose ranks meet without the worker: the area in which they do, at the very end,
// where every release finds it, and in front of it what prepares say of their routes, for the worker's figures.
#pragma once

#include <cstdint>

#include "proto/epd/v1/direct_area.h"

namespace epd::shm {

inline constexpr uint32_t kRouteLines = 512;
inline constexpr uint32_t kExpertsPerLine = 30;
// Prepares of groups with more experts, or whose ranks may have more tokens than kMaxDirectTokens, ask the worker; so does one
// that leads more routes than a line has room for to one expert, as a token may several times.
inline constexpr uint32_t kDirectExperts = 17 * kExpertsPerLine;
inline constexpr uint32_t kMaxDirectTokens = UINT16_MAX;
// Whoever has no lines left has made at least so many prepares that the worker has not taken.
inline constexpr uint32_t kFewestRoutes = 24;

// Routes of a rank to some of the experts; a prepare's stand in lines that follow each other. The rank alone writes them,
// before it publishes the prepare, and again once the worker has taken its record.
struct alignas(64) RouteLine {
  uint32_t count;  // Which publication is the prepare; 0: none yet.
  uint16_t of_expert[kExpertsPerLine];
};
static_assert(sizeof(RouteLine) == 64);
constexpr uint32_t NumRouteLines(uint32_t num_experts) {
  return (num_experts + kExpertsPerLine - 1) / kExpertsPerLine;
}
static_assert(kRouteLines / NumRouteLines(kDirectExperts) > kFewestRoutes + 1);

struct alignas(4096) DirectTail {
  RouteLine route_lines[kRouteLines];
  DirectArea area;
};
static_assert(sizeof(DirectTail) == kRouteLines * sizeof(RouteLine) + sizeof(DirectArea));

// Whether the worker has still to take the record of `count`, so that what belongs to it may not be written over.
constexpr bool IsUntaken(uint32_t taken, uint32_t count) {
  return count - taken - 1 < kDirectRecords;
}

}  // namespace epd::shm
