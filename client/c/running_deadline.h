// A deadline of a wait, which waits as much longer as this process did not run (proto/epd/v1/standstill.h): who was stopped
// together with those that it waits for gives them the time that they lost, too.
#pragma once

#include <algorithm>
#include <chrono>

#include "proto/epd/v1/standstill.h"

namespace epd::client {

// Reads no clock: `now` is what the waiting thread sees. For one wait that looks at least every standstill::kTick.
class RunningDeadline {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  RunningDeadline(TimePoint deadline, TimePoint now) : at_(deadline), looked_(now) {}

  // Whether it has passed for a process that was there all the time. To be asked at each look.
  bool Passed(TimePoint now) {
    const std::chrono::nanoseconds lost(
        standstill::Lost(Ns(looked_ + standstill::kTick), Ns(now), Ns(looked_)));
    looked_ = std::max(looked_, now);
    if (lost.count() > 0 && at_ < TimePoint::max() - lost) at_ += lost;
    return now >= at_;
  }
  TimePoint at() const { return at_; }
  // When to look again, if nothing happens.
  TimePoint NextLook() const { return std::min(at_, looked_ + standstill::kTick); }

 private:
  static int64_t Ns(TimePoint time) {
    return std::chrono::nanoseconds(time.time_since_epoch()).count();
  }

  TimePoint at_;
  TimePoint looked_;
};

}  // namespace epd::client
