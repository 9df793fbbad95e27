// Elements of gather-and-reduce on the device: to fp32 and back, the same bits as on the CPU.
#pragma once

#include <cstdint>

#include "kernels/data_type.h"
#include "kernels/float_bits.h"
#include "kernels/host_device.h"

namespace epd::cuda {

template <DataType kType>
struct Element;

template <>
struct Element<DataType::kFloat32> {
  using Bits = std::uint32_t;
  EPD_HOST_DEVICE static float Widen(Bits bits) { return BitsToFloat(bits); }
  EPD_HOST_DEVICE static Bits Narrow(float sum) {
    return sum != sum ? kFloat32NaN : FloatToBits(sum);
  }
};

template <>
struct Element<DataType::kBfloat16> {
  using Bits = std::uint16_t;
  EPD_HOST_DEVICE static float Widen(Bits bits) { return Bfloat16ToFloat(bits); }
  EPD_HOST_DEVICE static Bits Narrow(float sum) { return FloatToBfloat16(sum); }
};

template <>
struct Element<DataType::kFloat16> {
  using Bits = std::uint16_t;
  // One instruction each on the device. They differ from the CPU's definition in the payloads of
  // NaN only, which no sum keeps. tests/gpu compares all 65536 patterns.
  EPD_HOST_DEVICE static float Widen(Bits bits) {
#if defined(__CUDA_ARCH__)
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
#else
    return Float16ToFloat(bits);
#endif
  }
  EPD_HOST_DEVICE static Bits Narrow(float sum) {
#if defined(__CUDA_ARCH__)
    if (sum != sum) return kFloat16NaN;
    std::uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(sum));
    return bits;
#else
    return FloatToFloat16(sum);
#endif
  }
};

}  // namespace epd::cuda
