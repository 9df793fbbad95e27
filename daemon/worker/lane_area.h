// Lanes: where small rows stand before their operation is admitted, so that one wait does for two.
#pragma once

#include <cstdint>

#include "proto/epd/v1/region_layout.h"
#include "proto/epd/v1/segment.h"

namespace epd {

// Lane i of each arena of a set is [offset + i * lane_bytes, + lane_bytes). Which lane is in use is
// the client's to know: one belongs to one of its slots, and a slot is free when its `pulled` is
// answered, that is when nobody reads the lane any more.
struct LaneArea {
  uint64_t offset = 0;
  uint32_t num_lanes = 0;  // 0: there are none.

  friend bool operator==(const LaneArea&, const LaneArea&) = default;
};

struct LaneOptions {
  uint64_t lane_bytes = shm::kLaneBytes;
  uint32_t max_lanes = shm::kMaxLanes;
  uint64_t pool_share = shm::kLanePoolShare;
};

}  // namespace epd
