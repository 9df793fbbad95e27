// How long the exec thread waits between two looks at slots that GPU streams arm: a stream rings nothing.
#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace epd {

// `idle`: since something was last taken. While operations are open the next step of one is microseconds
// away, but for ranks that are late; the longer nothing comes, the longer the pauses, up to what a step
// may be delayed by.
inline absl::Duration StreamPause(bool operations_open, absl::Duration idle) {
  constexpr absl::Duration kBriefly = absl::Milliseconds(2);
  constexpr absl::Duration kLongest = absl::Microseconds(50);
  if (operations_open && idle < kBriefly) return absl::ZeroDuration();
  return std::min(idle / 8, kLongest);
}

}  // namespace epd
