// EagerBuffers: where small rows stand before their operation is admitted, so that one wait does for two.
#pragma once

#include <cstdint>

#include "proto/epd/v1/region_layout.h"
#include "proto/epd/v1/segment.h"

namespace epd {

// Eager buffer i of each arena of a set is [offset + i * buffer_bytes, + buffer_bytes). Which eager buffer is in use is
// the client's to know: one belongs to one of its slots, and a slot is free when its `pulled` is
// answered, that is when nobody reads the eager buffer any more.
struct EagerArea {
  uint64_t offset = 0;
  uint32_t num_eager_buffers = 0;  // 0: there are none.

  friend bool operator==(const EagerArea&, const EagerArea&) = default;
};

struct EagerOptions {
  uint64_t buffer_bytes = shm::kEagerBufferBytes;
  uint32_t max_buffers = shm::kMaxEagerBuffers;
  uint64_t pool_share = shm::kEagerPoolShare;
};

}  // namespace epd
