// What NCCL EP can serve: said before a group forms, since the library ends its process where it is asked
// for more.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "daemon/core/group_spec.h"

namespace epd {

// Of each expert's zone; receive buffers of the library are whole multiples of it, so that no padding
// ever overflows one.
inline constexpr uint32_t kNcclEpMaxAlignment = 128;
inline constexpr uint32_t kNcclEpTokenMultiple = 64;  // Of the most tokens per rank.
inline constexpr uint32_t kNcclEpRowMultiple = 16;    // Bytes.
inline constexpr uint32_t kNcclEpMaxHidden = 16384;
inline constexpr uint32_t kNcclEpMaxLocalExperts = 1024;
inline constexpr uint32_t kNcclEpMaxTopK = 32;

// Whether it can serve groups of this spec, as far as the spec tells; OK for other backends.
//   INVALID_ARGUMENT  which limit, what was got, and backend=cuda
absl::Status CheckNcclEpLimits(const GroupSpec& spec);

}  // namespace epd
