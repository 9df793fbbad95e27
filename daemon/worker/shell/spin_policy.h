// How long the exec thread looks for work before it sleeps.
#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace epd {

// Spinning saves a wake-up (tens of microseconds) when a core is idle anyway; where clients need
// every core it takes time from exactly those it waits for, so it only bridges the moment in which
// the next rank arms.
inline absl::Duration SpinTime(absl::Duration asked, int num_cpus, int num_sessions) {
  constexpr absl::Duration kCrowded = absl::Microseconds(5);
  return num_cpus > num_sessions ? asked : std::min(asked, kCrowded);
}

}  // namespace epd
