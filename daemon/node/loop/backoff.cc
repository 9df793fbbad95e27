#include "daemon/node/loop/backoff.h"

#include <algorithm>

namespace epd {

absl::Duration Backoff::AfterEnd(absl::Duration ran_for) {
  if (ran_for >= policy_.healthy_after) next_ = policy_.min;
  const absl::Duration wait = next_;
  next_ = std::min(next_ * 2, policy_.max);
  return wait;
}

}  // namespace epd
