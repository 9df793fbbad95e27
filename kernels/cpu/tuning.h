// The measured constants of the CPU kernels, in one place.
#pragma once

#include <cstddef>
#include <cstdint>

namespace epd {

struct CpuTuning {
  // Rows ahead whose first lines are asked for while a row is copied.
  std::int64_t prefetch_rows = 1;
  // Bytes of a row that a prefetch covers; the hardware follows from there.
  std::size_t prefetch_bytes = 256;
};
inline constexpr CpuTuning kCpuTuning;

}  // namespace epd
