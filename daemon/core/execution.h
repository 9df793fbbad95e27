// How often each rank has begun each compiled program: the numbers from which cut-offs are
// computed.
#pragma once

#include <array>
#include <compare>
#include <cstdint>

#include "daemon/core/ids.h"

namespace epd {

// A compiled program (or a static name), by its 16-byte fingerprint.
using ProgramId = std::array<uint8_t, 16>;

// `begun` is the next raw execution number of `program` on `rank`: one above the highest that has
// ended, well or with an error. Executions that merely wait for READY are not counted.
struct ExecutionCount {
  Rank rank;
  ProgramId program{};
  uint64_t begun = 0;
  bool failed = false;  // The rank's last call, of whichever program: it knows of the failure.

  friend auto operator<=>(const ExecutionCount&, const ExecutionCount&) = default;
};

// Raw execution `base` + n of `program` on `rank` is logical execution n of the formation; all raw
// executions below `base` fail with the formation's base cause. Pairs that are not listed have base
// 0.
struct ExecutionBase {
  Rank rank;
  ProgramId program{};
  uint64_t base = 0;

  friend auto operator<=>(const ExecutionBase&, const ExecutionBase&) = default;
};

}  // namespace epd
