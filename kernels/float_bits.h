// Conversions between fp32 and the 16-bit types, in plain C++: the definition that the vector
// levels and the CUDA kernels reproduce. Internal linkage, as for cpu/reduce_loop.h.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/host_device.h"

namespace epd {
namespace {

inline constexpr std::uint32_t kFloat32NaN = 0x7fc00000;
inline constexpr std::uint16_t kBfloat16NaN = 0x7fc0;
inline constexpr std::uint16_t kFloat16NaN = 0x7e00;

EPD_HOST_DEVICE inline std::uint32_t FloatToBits(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

EPD_HOST_DEVICE inline float BitsToFloat(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

EPD_HOST_DEVICE inline float Bfloat16ToFloat(std::uint16_t bits) {
  return BitsToFloat(static_cast<std::uint32_t>(bits) << 16);
}

// To nearest, ties to even; overflow to infinity; NaN canonical.
EPD_HOST_DEVICE inline std::uint16_t FloatToBfloat16(float value) {
  if (value != value) return kBfloat16NaN;
  const std::uint32_t bits = FloatToBits(value);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

EPD_HOST_DEVICE inline float Float16ToFloat(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1f;
  const std::uint32_t mantissa = half & 0x3ff;
  if (exponent == 0x1f) return BitsToFloat(sign | 0x7f800000 | (mantissa << 13));
  if (exponent != 0) return BitsToFloat(sign | ((exponent + 112) << 23) | (mantissa << 13));
  // Zero or denormal: an integer multiple of 2^-24, exact in fp32.
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return BitsToFloat(sign | FloatToBits(magnitude));
}

// To nearest, ties to even; overflow to infinity; NaN canonical.
EPD_HOST_DEVICE inline std::uint16_t FloatToFloat16(float value) {
  if (value != value) return kFloat16NaN;
  const std::uint32_t bits = FloatToBits(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000;
  const std::uint32_t magnitude = bits & 0x7fffffff;
  // 65520 is half-way between the largest finite half and 2^16: it and all above round to infinity.
  if (magnitude >= 0x477ff000) return static_cast<std::uint16_t>(sign | 0x7c00);
  if (magnitude < 0x38800000) {
    // Below 2^-14: adding 0.5 leaves multiples of 2^-24 in the mantissa, rounded by the addition.
    const float shifted = BitsToFloat(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (FloatToBits(shifted) - FloatToBits(0.5f)));
  }
  const std::uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000) >> 13));
}

}  // namespace
}  // namespace epd
