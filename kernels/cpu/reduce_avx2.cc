// Compiled with -mavx2 -mf16c; called only where SimdLevelSupported(kAvx2).
#include "kernels/cpu/reduce_rows.h"

#if defined(__AVX2__) && defined(__F16C__)

#include <immintrin.h>

#include "kernels/cpu/reduce_loop.h"
#include "kernels/float_bits.h"

namespace epd {
namespace {

// `otherwise` where `sum` is a number, `nan` in all lanes where it is not.
__m256i PickNaN(__m256 sum, std::uint32_t nan, __m256i otherwise) {
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(sum, sum, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(otherwise, _mm256_set1_epi32(static_cast<int>(nan)), is_nan);
}

struct Float32Lane {
  using Sum = __m256;
  static constexpr std::size_t kElements = 8;
  static constexpr std::size_t kElementBytes = 4;
  static constexpr int kUnroll = 4;
  static Sum Load(const std::uint8_t* p) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  }
  static Sum Add(const Sum& a, const Sum& b) { return _mm256_add_ps(a, b); }
  static void Store(std::uint8_t* p, const Sum& sum) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        PickNaN(sum, kFloat32NaN, _mm256_castps_si256(sum)));
  }
};

// Even and odd elements apart: each is one shift or mask away from its fp32, with no shuffle.
struct Bfloat16Lane {
  struct Sum {
    __m256 even;
    __m256 odd;
  };
  static constexpr std::size_t kElements = 16;
  static constexpr std::size_t kElementBytes = 2;
  static constexpr int kUnroll = 4;
  static Sum Load(const std::uint8_t* p) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)),
            _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(-65536)))};
  }
  static Sum Add(const Sum& a, const Sum& b) {
    return {_mm256_add_ps(a.even, b.even), _mm256_add_ps(a.odd, b.odd)};
  }
  // The rounded value in the upper 16 bits of each 32.
  static __m256i Round(__m256 sum) {
    const __m256i bits = _mm256_castps_si256(sum);
    const __m256i tie = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_add_epi32(bits, _mm256_add_epi32(tie, _mm256_set1_epi32(0x7fff)));
    return PickNaN(sum, std::uint32_t{kBfloat16NaN} << 16, rounded);
  }
  static void Store(std::uint8_t* p, const Sum& sum) {
    const __m256i even = _mm256_srli_epi32(Round(sum.even), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm256_blend_epi16(even, Round(sum.odd), 0xaa));
  }
};

struct Float16Lane {
  using Sum = __m256;
  static constexpr std::size_t kElements = 8;
  static constexpr std::size_t kElementBytes = 2;
  static constexpr int kUnroll = 4;
  static Sum Load(const std::uint8_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static Sum Add(const Sum& a, const Sum& b) { return _mm256_add_ps(a, b); }
  static void Store(std::uint8_t* p, const Sum& sum) {
    // The canonical fp32 NaN converts to the canonical fp16 NaN.
    const __m256 clean = _mm256_castsi256_ps(PickNaN(sum, kFloat32NaN, _mm256_castps_si256(sum)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm256_cvtps_ph(clean, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
};

}  // namespace

const ReduceFunctions kAvx2Reduce = {ReduceLoop<Float32Lane>, ReduceLoop<Bfloat16Lane>,
                                     ReduceLoop<Float16Lane>};

}  // namespace epd

#elif defined(__x86_64__)
#error "compile this file with -mavx2 -mf16c"
#else

namespace epd {
const ReduceFunctions kAvx2Reduce = {nullptr, nullptr, nullptr};
}  // namespace epd

#endif
