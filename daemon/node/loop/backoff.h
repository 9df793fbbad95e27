// How long to wait before the next start of something that keeps ending.
#pragma once

#include <algorithm>
#include <utility>

#include "absl/time/time.h"

namespace epd {

// Doubles the wait with every end, from `min` to `max`; one healthy run forgets the past. Reads no
// clock.
class Backoff {
 public:
  struct Policy {
    absl::Duration min = absl::Milliseconds(100);
    absl::Duration max = absl::Seconds(30);
    absl::Duration healthy_after =
        absl::Minutes(1);  // A run of at least this resets the wait to `min`.
  };

  explicit Backoff(Policy policy) : policy_(policy), next_(policy.min) {}

  // The wait before the next start, after a run that lasted `ran_for`.
  absl::Duration AfterEnd(absl::Duration ran_for) {
    if (ran_for >= policy_.healthy_after) next_ = policy_.min;
    return std::exchange(next_, std::min(next_ * 2, policy_.max));
  }

 private:
  Policy policy_;
  absl::Duration next_;
};

}  // namespace epd
