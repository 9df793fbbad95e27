// EagerBuffers: where rows stand before their operation is admitted, so that one wait does for two.
#pragma once

#include <cstdint>

#include "proto/epd/v1/eager_layout.h"

namespace epd {

// Eager buffer i of each arena of a set is [offset + i * buffer_bytes, + buffer_bytes). Which eager buffers are in use is
// the client's to know: they belong to one of its slots until it is free, when its `pulled` is
// answered, that is when nobody reads them any more.
struct EagerArea {
  uint64_t offset = 0;
  uint32_t num_eager_buffers = 0;  // 0: there are none.

  friend bool operator==(const EagerArea&, const EagerArea&) = default;
};

using EagerOptions = shm::EagerOptions;

}  // namespace epd
