// How much of what waits is done before a thread looks at something else.
#pragma once

#include <utility>

#include "absl/time/time.h"

namespace epd {

// A turn of at most `max_items`, of which none begins once `max_time` has passed; one always does.
class TurnBudget {
 public:
  TurnBudget(int max_items, absl::Duration max_time, absl::Time now)
      : left_(max_items), end_(now + max_time) {}

  // Whether another one may begin.
  bool Takes(absl::Time now) {
    const bool is_first = !std::exchange(has_begun_, true);
    return is_first || (--left_ > 0 && now < end_);
  }

 private:
  int left_;
  const absl::Time end_;
  bool has_begun_ = false;
};

}  // namespace epd
