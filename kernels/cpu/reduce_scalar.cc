#include "kernels/cpu/reduce_loop.h"
#include "kernels/cpu/reduce_rows.h"
#include "kernels/float_bits.h"

namespace epd {
namespace {

struct Float32Lane {
  using Sum = float;
  static constexpr std::size_t kElements = 1;
  static constexpr std::size_t kElementBytes = 4;
  static constexpr int kUnroll = 8;
  static Sum Load(const std::uint8_t* p) {
    Sum value;
    std::memcpy(&value, p, 4);
    return value;
  }
  static Sum Add(Sum a, Sum b) { return a + b; }
  static void Store(std::uint8_t* p, Sum sum) {
    const std::uint32_t bits = sum != sum ? kFloat32NaN : FloatToBits(sum);
    std::memcpy(p, &bits, 4);
  }
};

// Both 16-bit types, told apart by their conversions.
template <float (*kWiden)(std::uint16_t), std::uint16_t (*kNarrow)(float)>
struct HalfLane {
  using Sum = float;
  static constexpr std::size_t kElements = 1;
  static constexpr std::size_t kElementBytes = 2;
  static constexpr int kUnroll = 8;
  static Sum Load(const std::uint8_t* p) {
    std::uint16_t bits;
    std::memcpy(&bits, p, 2);
    return kWiden(bits);
  }
  static Sum Add(Sum a, Sum b) { return a + b; }
  static void Store(std::uint8_t* p, Sum sum) {
    const std::uint16_t bits = kNarrow(sum);
    std::memcpy(p, &bits, 2);
  }
};

}  // namespace

const ReduceFunctions kScalarReduce = {
    ReduceLoop<Float32Lane>,
    ReduceLoop<HalfLane<Bfloat16ToFloat, FloatToBfloat16>>,
    ReduceLoop<HalfLane<Float16ToFloat, FloatToFloat16>>,
};

}  // namespace epd
