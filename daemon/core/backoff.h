// How long to wait before the next try of something that keeps failing: the one rule for all of epd.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/time/time.h"

namespace epd {

// Doubles the wait with every end, from `min` to `max`; one healthy run forgets the past. Reads no
// clock, and draws from `seed` alone.
class Backoff {
 public:
  struct Policy {
    absl::Duration min = absl::Milliseconds(100);
    absl::Duration max = absl::Seconds(30);
    absl::Duration healthy_after =
        absl::Minutes(1);  // A run of at least this resets the wait to `min`.
    // The last part of the wait is drawn: of 1 s and 0.5, it lasts 0.5 to 1 s. For what belongs to
    // others (etcd, a coordinator, a collector): when it comes back, a thousand nodes that lost it
    // at the same moment do not call at the same moment.
    double jitter = 0;
  };
  static constexpr double kTowardsOthers = 0.5;

  explicit Backoff(Policy policy, uint64_t seed = 0)
      : policy_(policy), next_(policy.min), draws_(seed) {}

  // The wait before the next start, after a run that lasted `ran_for`.
  absl::Duration AfterEnd(absl::Duration ran_for) {
    if (ran_for >= policy_.healthy_after) next_ = policy_.min;
    const absl::Duration wait = std::exchange(next_, std::min(next_ * 2, policy_.max));
    return wait - wait * policy_.jitter * Draw();
  }
  // The wait before the next try, of what failed at once.
  absl::Duration AfterFailure() { return AfterEnd(absl::ZeroDuration()); }
  // It worked.
  void Reset() { next_ = policy_.min; }

 private:
  // splitmix64, in [0, 1).
  double Draw() {
    uint64_t z = draws_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
  }

  Policy policy_;
  absl::Duration next_;
  uint64_t draws_;
};

}  // namespace epd
