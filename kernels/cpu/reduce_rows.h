// Sums of rows: the arithmetic of gather and reduce, one function per data type and SIMD level.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/data_type.h"
#include "kernels/simd.h"

namespace epd {

// out[i] = rows[0][i] + rows[1][i] + ... in that order, in fp32, rounded once; NaN results are
// canonical. `num_rows` >= 2; nothing needs to be aligned; out overlaps no row. Expects the default
// floating-point environment (DefaultFloatMode).
using ReduceFunction = void (*)(const std::uint8_t* const* rows, std::int32_t num_rows,
                                std::uint8_t* out, std::size_t num_elements);

// One per source file, each compiled for its level; null where the build has no such level.
struct ReduceFunctions {
  ReduceFunction float32;
  ReduceFunction bfloat16;
  ReduceFunction float16;
};
extern const ReduceFunctions kScalarReduce;
extern const ReduceFunctions kAvx2Reduce;
extern const ReduceFunctions kAvx512Reduce;

// The function for `dtype` at `level`, which SimdLevelSupported; null if dtype is no DataType.
ReduceFunction SelectReduce(DataType dtype, SimdLevel level);

// Sets round-to-nearest and keeps denormals for its lifetime. XLA's threads flush denormals, and a
// result must not depend on the thread that computes it.
class DefaultFloatMode {
 public:
  DefaultFloatMode();
  ~DefaultFloatMode();
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

 private:
  std::uint64_t saved_;
};

}  // namespace epd
