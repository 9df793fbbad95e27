// The checksum in a plan's header: for the kernels' own sources and their tests.
#pragma once

#include <cstddef>
#include <cstdint>

namespace epd {

// XXH3 of `used_bytes` (>= sizeof(PlanHeader)) from `plan`, leaving out PlanHeader::checksum.
std::uint64_t PlanChecksum(const void* plan, std::size_t used_bytes);

}  // namespace epd
