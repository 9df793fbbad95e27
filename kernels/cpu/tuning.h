// The measured constants of the CPU kernels, in one place.
#pragma once

#include <cstddef>

namespace epd {

struct CpuTuning {
  // Bytes of a row that a prefetch covers; the hardware follows from there.
  std::size_t prefetch_bytes = 256;
  // glibc maps a block of this size or more anew for each allocation (DEFAULT_MMAP_THRESHOLD_MAX),
  // so its pages are fresh each time; smaller ones come back warm, and huge pages made them slower
  // (p99 of 8 MB outputs 10 -> 80 ms, while 168 MB ones went from 470 to 92 ms).
  std::size_t huge_output_bytes = std::size_t{32} << 20;
};
inline constexpr CpuTuning kCpuTuning;

}  // namespace epd
