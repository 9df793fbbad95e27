// Into which buckets seconds are counted: a worker fills them, epd shows them.
#pragma once

#include <array>
#include <cstddef>

namespace epd {

// Upper bounds in seconds, ascending. One more bucket is for what lies above all of them.
inline constexpr std::array<double, 14> kTimeBounds = {1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2,
                                                       3e-2, 0.1,  0.3,  1,    3,    10,   100};
inline constexpr size_t kNumTimeBuckets = kTimeBounds.size() + 1;

// Coarser, for what is counted per rank.
inline constexpr std::array<double, 5> kWaitBounds = {1e-4, 1e-3, 1e-2, 0.1, 1};
inline constexpr size_t kNumWaitBuckets = kWaitBounds.size() + 1;

}  // namespace epd
