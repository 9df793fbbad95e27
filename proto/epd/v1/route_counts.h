// What a stream's prepare tells of its routes where the ranks exchange their counts by themselves: for the worker's figures.
//
// The request of its publish has, behind StreamRequest up to its end, the rank's routes to a slice of the experts
// (RouteSliceOf in kernels/route_slice.h), 16 bits each, 65535 and more as that.
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/epd/v1/segment.h"

namespace epd::shm {

inline constexpr uint64_t kRouteCountsAt = offsetof(SlotRequest, stream) + sizeof(StreamRequest);
inline constexpr uint32_t kMaxRouteCounts =
    (sizeof(SlotRequest) - kRouteCountsAt) / sizeof(uint16_t);
static_assert(kMaxRouteCounts >= 256);

}  // namespace epd::shm
