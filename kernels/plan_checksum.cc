#include "kernels/plan_checksum.h"

#ifndef XXH_INLINE_ALL  // the build rule of xxhash may have set it
#define XXH_INLINE_ALL
#endif
#include <xxhash.h>

#include "kernels/routing_plan.h"

namespace epd {

// The header's hash seeds the body's, which keeps this to two one-shot calls.
std::uint64_t PlanChecksum(const void* plan, std::size_t used_bytes) {
  const auto* bytes = static_cast<const std::uint8_t*>(plan);
  const std::uint64_t seed = XXH3_64bits(bytes, offsetof(PlanHeader, checksum));
  return XXH3_64bits_withSeed(bytes + sizeof(PlanHeader), used_bytes - sizeof(PlanHeader), seed);
}

}  // namespace epd
