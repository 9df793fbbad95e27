// Which vector instructions the CPU kernels use: the best there is, unless forced.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernel_error.h"

namespace epd {

// Every level gives the same bits; only the speed differs.
enum class SimdLevel : std::int32_t {
  kScalar = 0,  // plain C++, on any machine
  kAvx2 = 1,    // AVX2 and F16C
  kAvx512 = 2,  // AVX-512 F, BW, DQ and VL
};
inline constexpr SimdLevel kAllSimdLevels[] = {SimdLevel::kScalar, SimdLevel::kAvx2,
                                               SimdLevel::kAvx512};

// "scalar", "avx2", "avx512".
const char* SimdLevelName(SimdLevel level);

// Whether this machine and this build can run it. kScalar always can.
bool SimdLevelSupported(SimdLevel level);

SimdLevel BestSimdLevel();

// The level that launchers use from their next call on: BestSimdLevel() until set.
SimdLevel ActiveSimdLevel();

// Forces a level for the whole process. Safe from any thread.
//   kInvalidArgument  kSimdLevel: not on this machine; the formatted text lists what is.
KernelError SetSimdLevel(SimdLevel level);

// The same by name; "auto" takes the best. `name` is borrowed by the error.
//   kInvalidArgument  kSimdLevel: no such name, or not on this machine.
KernelError SetSimdLevelByName(const char* name);

}  // namespace epd
