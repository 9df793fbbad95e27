#include "kernels/prepare_output.h"

#include <sys/mman.h>

#include <cstdint>

#include "kernels/cpu/tuning.h"

namespace epd {

void PrepareOutput(void* memory, std::size_t bytes) {
  if (bytes < kCpuTuning.huge_output_bytes) return;
  constexpr std::uintptr_t kHugePage = 2 << 20;
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t begin = (address + kHugePage - 1) & ~(kHugePage - 1);
  const std::uintptr_t end = (address + bytes) & ~(kHugePage - 1);
  // Advice: a refusal means small pages, as before.
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

}  // namespace epd
