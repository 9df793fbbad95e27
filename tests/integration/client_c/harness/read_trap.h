// Stops a process at the exact place where it reads a buffer: an operation that was admitted and
// has not published yet holds its region just there.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/integration/client_c/harness/rank_process.h"

namespace epd::testing {

// What a process that ran into the trap says.
inline constexpr char kTrapped[] = "trapped";

// Takes away the whole pages within `buffer`, for good: the first thread that touches them says
// kTrapped and stops for ever. Once per process, which is to be killed. False: the buffer holds no
// whole page, or the kernel refused.
bool TrapReads(const std::vector<uint8_t>& buffer, const Link& link);

// As TrapReads, for reads and writes; whoever ran into it goes on once the test has said a line.
bool HoldAtFirstTouch(const std::vector<uint8_t>& buffer, const Link& link);

}  // namespace epd::testing
