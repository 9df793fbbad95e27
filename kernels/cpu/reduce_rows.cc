#include "kernels/cpu/reduce_rows.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace epd {

ReduceFunction SelectReduce(DataType dtype, SimdLevel level) {
  const ReduceFunctions& functions = level == SimdLevel::kAvx512 ? kAvx512Reduce
                                     : level == SimdLevel::kAvx2 ? kAvx2Reduce
                                                                 : kScalarReduce;
  switch (dtype) {
    case DataType::kFloat32:
      return functions.float32;
    case DataType::kBfloat16:
      return functions.bfloat16;
    case DataType::kFloat16:
      return functions.float16;
  }
  return nullptr;
}

#if defined(__x86_64__)

DefaultFloatMode::DefaultFloatMode() : saved_(_mm_getcsr()) {
  constexpr unsigned kDefault = 0x1f80;  // all exceptions masked, nearest, no flushing
  if (saved_ != kDefault) _mm_setcsr(kDefault);
}
DefaultFloatMode::~DefaultFloatMode() { _mm_setcsr(static_cast<unsigned>(saved_)); }

#elif defined(__aarch64__)

DefaultFloatMode::DefaultFloatMode() {
  asm volatile("mrs %0, fpcr" : "=r"(saved_));
  asm volatile("msr fpcr, %0" : : "r"(std::uint64_t{0}));
}
DefaultFloatMode::~DefaultFloatMode() { asm volatile("msr fpcr, %0" : : "r"(saved_)); }

#else

DefaultFloatMode::DefaultFloatMode() : saved_(0) {}
DefaultFloatMode::~DefaultFloatMode() = default;

#endif

}  // namespace epd
