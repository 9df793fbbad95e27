#include "daemon/core/running_time.h"

#include <algorithm>
#include <utility>

#include "proto/epd/v1/standstill.h"

namespace epd {

absl::Duration RunningTime::Nap(absl::Duration wanted) {
  if (wanted == absl::InfiniteDuration()) return wanted;
  return std::clamp(wanted, absl::ZeroDuration(), absl::FromChrono(standstill::kTick));
}

absl::Duration RunningTime::Look(absl::Time clock) {
  const absl::Time last = std::exchange(last_, clock);
  const absl::Duration slept = std::exchange(sleeps_, absl::ZeroDuration());
  if (last == absl::InfinitePast() || slept == absl::InfiniteDuration())
    return absl::ZeroDuration();
  const absl::Time due = last + slept;
  const absl::Duration lost = absl::Nanoseconds(
      standstill::Lost(absl::ToUnixNanos(due), absl::ToUnixNanos(clock), absl::ToUnixNanos(last)));
  if (lost == absl::ZeroDuration()) return lost;
  lost_ += lost;
  standstills_.push_back({clock - lost, clock});
  if (standstills_.size() > kKept) {
    forgotten_ += standstills_.front().end - standstills_.front().begin;
    standstills_.pop_front();
  }
  return lost;
}

absl::Time RunningTime::FromClock(absl::Time clock) const {
  absl::Duration before = forgotten_;
  for (const Standstill& one : standstills_)
    before += std::clamp(clock - one.begin, absl::ZeroDuration(), one.end - one.begin);
  return clock - before;
}

absl::Time RunningTime::ToClock(absl::Time time) const {
  absl::Time clock = time + forgotten_;
  for (const Standstill& one : standstills_) {
    if (clock > one.begin) clock += one.end - one.begin;
  }
  return clock;
}

}  // namespace epd
