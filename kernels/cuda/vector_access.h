// Loads and stores of 1 to 16 bytes that pass by the first-level cache.
//
// Rows are packed, [num_rows, row_bytes], and start at addresses of staging or of an XLA buffer,
// which are multiples of 16. So every row of a tensor is aligned to the largest power of two that
// divides row_bytes, 16 at the most, and consists of a whole number of such words: a launch picks
// that width once (RowWidth) and a row has neither head nor tail. A hidden size that is not a
// multiple of 16 bytes could not be moved in 16-byte words anyway, because its rows stand at
// different offsets in source and destination.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/host_device.h"

namespace epd::cuda {

// What a word is made of. Of single bytes a compiler would make a register each where a word is loaded under a condition.
template <int kBytes>
struct UnitOf {
  using Type = std::uint32_t;
};
template <>
struct UnitOf<2> {
  using Type = std::uint16_t;
};
template <>
struct UnitOf<1> {
  using Type = std::uint8_t;
};

template <int kBytes>
struct alignas(kBytes) Word {
  using Unit = typename UnitOf<kBytes>::Type;
  Unit unit[kBytes / sizeof(Unit)];
};

// Rows are read once and by nobody soon after: keep them out of L1. Within one launch nobody writes
// what others read, so the read-only path is allowed.
template <int kBytes>
EPD_HOST_DEVICE inline Word<kBytes> LoadStreaming(const std::uint8_t* from) {
#if defined(__CUDA_ARCH__)
  if constexpr (kBytes == 16) {
    Word<16> word;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word.unit[0]), "=r"(word.unit[1]), "=r"(word.unit[2]), "=r"(word.unit[3])
                 : "l"(__cvta_generic_to_global(from)));
    return word;
  }
#endif
  return *reinterpret_cast<const Word<kBytes>*>(from);
}

template <int kBytes>
EPD_HOST_DEVICE inline void StoreStreaming(std::uint8_t* to, const Word<kBytes>& word) {
#if defined(__CUDA_ARCH__)
  if constexpr (kBytes == 16) {
    asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(
                     __cvta_generic_to_global(to)),
                 "r"(word.unit[0]), "r"(word.unit[1]), "r"(word.unit[2]), "r"(word.unit[3])
                 : "memory");
    return;
  }
#endif
  *reinterpret_cast<Word<kBytes>*>(to) = word;
}

}  // namespace epd::cuda
