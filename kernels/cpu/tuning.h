// The measured constants of the CPU kernels, in one place.
#pragma once

#include <cstddef>

namespace epd {

struct CpuTuning {
  // Bytes of a row that a prefetch covers; the hardware follows from there.
  std::size_t prefetch_bytes = 256;
  // Outputs from this size on are worth a system call; below, hardly a whole huge page fits.
  std::size_t huge_output_bytes = std::size_t{4} << 20;
};
inline constexpr CpuTuning kCpuTuning;

}  // namespace epd
