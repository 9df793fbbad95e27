// How many eager buffers (segment.h) an arena has: few for small rows, and room for some calls where rows are larger.
#pragma once

#include <algorithm>
#include <cstdint>

#include "proto/epd/v1/segment.h"

namespace epd::shm {

struct EagerOptions {
  uint64_t buffer_bytes = kEagerBufferBytes;
  uint32_t few_buffers = kFewEagerBuffers;
  uint32_t max_buffers = kMaxEagerBuffers;
  uint64_t pool_share = 32;  // All eager buffers of a node take at most 1 / pool_share of its pool.
};

// Of rows, 1 for none.
constexpr uint64_t NumBuffersOf(uint64_t stage_bytes, uint64_t buffer_bytes) {
  return std::max<uint64_t>(1, stage_bytes / buffer_bytes + (stage_bytes % buffer_bytes != 0));
}

// Calls in turn need two places for their rows, since peers read one's while the next are staged; two chains of calls
// side by side twice as many. A call whose rows take more than half of the buffers has no place for the next.
inline constexpr uint64_t kEagerCalls = 4;
inline constexpr uint64_t kEagerCallsAtLeast = 2;

struct EagerDemand {
  uint64_t num_arenas = 1;   // Of the set.
  uint64_t stage_bytes = 0;  // Of a call.
  bool several = false;      // All clients read rows of several buffers.
};

// How many an arena of a set gets for such calls. `spare_bytes`: what other sets' have left of the pool's share, of which a
// set takes no more than half for larger rows. 0: none for these.
constexpr uint64_t NumEagerBuffers(const EagerOptions& options, const EagerDemand& demand,
                                   uint64_t spare_bytes) {
  const uint64_t of_all = options.buffer_bytes * demand.num_arenas;
  const uint64_t few = std::min<uint64_t>(options.few_buffers, spare_bytes / of_all);
  const uint64_t of_call = NumBuffersOf(demand.stage_bytes, options.buffer_bytes);
  if (of_call == 1) return few;
  const uint64_t wanted = kEagerCalls * of_call + options.few_buffers;
  const uint64_t many = std::min(wanted, spare_bytes / 2 / of_all);
  const bool enough = many >= kEagerCallsAtLeast * of_call && many > options.few_buffers;
  return demand.several && enough && wanted <= options.max_buffers ? many : 0;
}

}  // namespace epd::shm
