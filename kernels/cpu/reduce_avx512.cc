// Compiled with -mavx512f -mavx512bw -mavx512dq -mavx512vl; called only where
// SimdLevelSupported(kAvx512).
#include "kernels/cpu/reduce_rows.h"

#if defined(__AVX512F__) && defined(__AVX512BW__)

// GCC 12 takes its own _mm512_undefined_epi32 for a mistake (GCC bug 105593).
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <immintrin.h>

#include "kernels/cpu/reduce_loop.h"
#include "kernels/float_bits.h"

namespace epd {
namespace {

// `otherwise` where `sum` is a number, `nan` in all lanes where it is not.
__m512i PickNaN(__m512 sum, std::uint32_t nan, __m512i otherwise) {
  return _mm512_mask_mov_epi32(otherwise, _mm512_cmp_ps_mask(sum, sum, _CMP_UNORD_Q),
                               _mm512_set1_epi32(static_cast<int>(nan)));
}

struct Float32Lane {
  using Sum = __m512;
  static constexpr std::size_t kElements = 16;
  static constexpr std::size_t kElementBytes = 4;
  static constexpr int kUnroll = 4;
  static Sum Load(const std::uint8_t* p) { return _mm512_loadu_ps(p); }
  static Sum Add(const Sum& a, const Sum& b) { return _mm512_add_ps(a, b); }
  static void Store(std::uint8_t* p, const Sum& sum) {
    _mm512_storeu_si512(p, PickNaN(sum, kFloat32NaN, _mm512_castps_si512(sum)));
  }
};

// Even and odd elements apart, as for AVX2.
struct Bfloat16Lane {
  struct Sum {
    __m512 even;
    __m512 odd;
  };
  static constexpr std::size_t kElements = 32;
  static constexpr std::size_t kElementBytes = 2;
  static constexpr int kUnroll = 4;
  static Sum Load(const std::uint8_t* p) {
    const __m512i pairs = _mm512_loadu_si512(p);
    return {_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)),
            _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-65536)))};
  }
  static Sum Add(const Sum& a, const Sum& b) {
    return {_mm512_add_ps(a.even, b.even), _mm512_add_ps(a.odd, b.odd)};
  }
  // The rounded value in the upper 16 bits of each 32.
  static __m512i Round(__m512 sum) {
    const __m512i bits = _mm512_castps_si512(sum);
    const __m512i tie = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(bits, _mm512_add_epi32(tie, _mm512_set1_epi32(0x7fff)));
    return PickNaN(sum, std::uint32_t{kBfloat16NaN} << 16, rounded);
  }
  static void Store(std::uint8_t* p, const Sum& sum) {
    const __m512i even = _mm512_srli_epi32(Round(sum.even), 16);
    _mm512_storeu_si512(p, _mm512_mask_mov_epi16(even, 0xaaaaaaaa, Round(sum.odd)));
  }
};

struct Float16Lane {
  using Sum = __m512;
  static constexpr std::size_t kElements = 16;
  static constexpr std::size_t kElementBytes = 2;
  static constexpr int kUnroll = 4;
  static Sum Load(const std::uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Sum Add(const Sum& a, const Sum& b) { return _mm512_add_ps(a, b); }
  static void Store(std::uint8_t* p, const Sum& sum) {
    // The canonical fp32 NaN converts to the canonical fp16 NaN.
    const __m512 clean = _mm512_castsi512_ps(PickNaN(sum, kFloat32NaN, _mm512_castps_si512(sum)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(clean, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
};

}  // namespace

const ReduceFunctions kAvx512Reduce = {ReduceLoop<Float32Lane>, ReduceLoop<Bfloat16Lane>,
                                       ReduceLoop<Float16Lane>};

}  // namespace epd

#elif defined(__x86_64__)
#error "compile this file with -mavx512f -mavx512bw -mavx512dq -mavx512vl"
#else

namespace epd {
const ReduceFunctions kAvx512Reduce = {nullptr, nullptr, nullptr};
}  // namespace epd

#endif
