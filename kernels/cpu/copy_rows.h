// Copies of single rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/tuning.h"

namespace epd {

// Copies rows of one size. libc's memcpy picks the vector width of the machine by itself and
// streams copies above its own threshold.
class RowCopy {
 public:
  explicit RowCopy(std::uint64_t row_bytes) : row_bytes_(row_bytes) {}

  void Copy(void* to, const void* from) const { std::memcpy(to, from, row_bytes_); }

  // Asks for the head of a row that is copied soon.
  void Prefetch(const std::uint8_t* row) const {
    const std::size_t bytes =
        row_bytes_ < kCpuTuning.prefetch_bytes ? row_bytes_ : kCpuTuning.prefetch_bytes;
    for (std::size_t i = 0; i < bytes; i += 64) __builtin_prefetch(row + i);
  }

  // Orders streamed stores before whatever publishes them.
  void Finish() const {}

 private:
  std::uint64_t row_bytes_;
};

}  // namespace epd
