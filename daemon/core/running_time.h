// The time of a loop: CLOCK_MONOTONIC, but that it stands still while the loop's process does (proto/epd/v1/standstill.h).
#pragma once

#include <cstddef>
#include <deque>

#include "absl/time/time.h"

namespace epd {

// Reads no clock. Not thread-safe.
//
//   RunningTime time;
//   time.Look(Clock());                       // and whenever the loop wants to know what time it is
//   time.Sleeps(RunningTime::Nap(deadline - time.now()));
//   epoll_wait(...);
//   time.Look(Clock());
class RunningTime {
 public:
  // How long the loop may sleep at most, where it would sleep for `wanted`: not for so long that it could not see that it stood
  // still. Where nothing has a deadline there is nothing to see.
  static absl::Duration Nap(absl::Duration wanted);

  // The loop runs, and the clock says `clock`. Returns what was lost since the last look.
  absl::Duration Look(absl::Time clock);
  // The loop is about to sleep, for so long at most.
  void Sleeps(absl::Duration at_most) { sleeps_ = at_most; }

  // As of the last look.
  absl::Time now() const { return last_ - lost_; }
  // All that was lost so far.
  absl::Duration lost() const { return lost_; }

  // A reading of the clock in this time, and the other way round: exact for the last kKept standstills.
  absl::Time FromClock(absl::Time clock) const;
  absl::Time ToClock(absl::Time time) const;

  static constexpr size_t kKept = 64;

 private:
  struct Standstill {
    absl::Time begin;  // By the clock.
    absl::Time end;
  };

  absl::Time last_ = absl::InfinitePast();
  absl::Duration sleeps_ = absl::ZeroDuration();
  absl::Duration lost_ = absl::ZeroDuration();
  absl::Duration forgotten_ =
      absl::ZeroDuration();  // Of `lost_`: in those that are no longer kept.
  std::deque<Standstill> standstills_;
};

}  // namespace epd
