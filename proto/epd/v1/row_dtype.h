// Element types of rows in a SlotRequest: the numbers of epd_dtype.
#pragma once

#include <cstdint>

namespace epd::shm {

// Or'ed with (width << 8 | tag): elements of `width` bytes that are only moved.
inline constexpr uint32_t kOpaqueDtype = 0x10000;

// True for the types that gather-reduce sums: float32, bfloat16, float16.
constexpr bool IsReducible(uint32_t dtype) { return dtype >= 1 && dtype <= 3; }

// Bytes of an element; 0 for what is no type.
constexpr uint32_t DtypeBytes(uint32_t dtype) {
  if (dtype == 1) return 4;
  if (IsReducible(dtype)) return 2;
  const uint32_t width = dtype >> 8 & 0xff;
  const bool opaque = (dtype & ~uint32_t{0xffff}) == kOpaqueDtype;
  return opaque && (width == 1 || width == 2 || width == 4 || width == 8) ? width : 0;
}

}  // namespace epd::shm
