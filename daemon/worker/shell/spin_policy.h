// How long the exec thread looks for work before it sleeps, and between two looks.
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

// Between two looks at slots that GPU streams arm: a stream rings nothing.
// `idle`: since something was last taken. While operations are open the next step of one is microseconds
// away, but for ranks that are late; the longer nothing comes, the longer the pauses, up to what a step
// may be delayed by.
inline absl::Duration StreamPause(bool operations_open, absl::Duration idle) {
  constexpr absl::Duration kBriefly = absl::Milliseconds(2);
  constexpr absl::Duration kLongest = absl::Microseconds(50);
  if (operations_open && idle < kBriefly) return absl::ZeroDuration();
  return std::min(idle / 8, kLongest);
}

// Between two looks at a device that has work, which rings nothing either. `idle`: since something was last
// taken. What the device has finished waits for the next look, so a pause is a small part of the time that
// has passed already: the first millisecond is spun through. Where clients need every core it is a sleep.
inline absl::Duration DevicePause(absl::Duration idle, int num_cpus, int num_sessions) {
  constexpr int kShare = 64;
  constexpr absl::Duration kShortest =
      absl::Microseconds(10);  // Below it a sleep costs more than it spares.
  constexpr absl::Duration kLongest = absl::Microseconds(20);
  if (num_cpus <= num_sessions) return kLongest;
  const absl::Duration pause = std::min(idle / kShare, kLongest);
  return pause < kShortest ? absl::ZeroDuration() : pause;
}

}  // namespace epd
