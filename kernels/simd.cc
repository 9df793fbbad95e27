#include "kernels/simd.h"

#include <atomic>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace epd {
namespace {

// -1 until a level is forced. The one process-wide variable of the kernels that changes.
std::atomic<std::int32_t> forced_level{-1};

KernelError UnsupportedLevel(const char* name) {
  KernelError error;
  error.code = Code::kInvalidArgument;
  error.fault = KernelFault::kSimdLevel;
  error.text = name;
  return error;
}

#if defined(__x86_64__)
// clang 14's __builtin_cpu_supports does not know this name.
bool CpuHasF16c() {
  unsigned int eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

}  // namespace

const char* SimdLevelName(SimdLevel level) {
  switch (level) {
    case SimdLevel::kScalar:
      return "scalar";
    case SimdLevel::kAvx2:
      return "avx2";
    case SimdLevel::kAvx512:
      return "avx512";
  }
  return "unknown";
}

bool SimdLevelSupported(SimdLevel level) {
  if (level == SimdLevel::kScalar) return true;
#if defined(__x86_64__)
  // The builtins also ask whether the operating system saves the registers.
  if (level == SimdLevel::kAvx2) {
    return __builtin_cpu_supports("avx2") && CpuHasF16c();
  }
  if (level == SimdLevel::kAvx512) {
    return SimdLevelSupported(SimdLevel::kAvx2) && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
  }
#endif
  return false;
}

SimdLevel BestSimdLevel() {
  // Asked once: in a virtual machine each cpuid goes out to the hypervisor, which took a fifth of a combine of 8 tokens.
  static const SimdLevel best = [] {
    if (SimdLevelSupported(SimdLevel::kAvx512)) return SimdLevel::kAvx512;
    if (SimdLevelSupported(SimdLevel::kAvx2)) return SimdLevel::kAvx2;
    return SimdLevel::kScalar;
  }();
  return best;
}

SimdLevel ActiveSimdLevel() {
  const std::int32_t forced = forced_level.load(std::memory_order_relaxed);
  return forced < 0 ? BestSimdLevel() : static_cast<SimdLevel>(forced);
}

KernelError SetSimdLevel(SimdLevel level) {
  if (!SimdLevelSupported(level)) return UnsupportedLevel(SimdLevelName(level));
  forced_level.store(static_cast<std::int32_t>(level), std::memory_order_relaxed);
  return {};
}

KernelError SetSimdLevelByName(const char* name) {
  if (name == nullptr) return UnsupportedLevel("");
  if (std::strcmp(name, "auto") == 0) {
    forced_level.store(-1, std::memory_order_relaxed);
    return {};
  }
  for (const SimdLevel level : kAllSimdLevels) {
    if (std::strcmp(name, SimdLevelName(level)) == 0) return SetSimdLevel(level);
  }
  return UnsupportedLevel(name);
}

}  // namespace epd
