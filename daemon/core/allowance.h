// How much may be done where others wait for it meanwhile.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace epd {

// So much at once, and so much a second: what is not taken is kept up to `burst`. In units of whoever takes. Not thread-safe.
class Allowance {
 public:
  Allowance(uint64_t burst, uint64_t per_second)
      : burst_(burst), per_second_(static_cast<double>(per_second)), left_(burst) {}

  // What may be taken at `now`, no earlier than the last one.
  uint64_t Left(absl::Time now) {
    const absl::Duration all = absl::Seconds(static_cast<double>(burst_) / per_second_);
    const absl::Duration since = std::clamp(now - at_, absl::ZeroDuration(), all);
    const auto more = static_cast<uint64_t>(absl::ToDoubleSeconds(since) * per_second_);
    if (more > 0) {  // Or what comes between two calls is less than one, and would be lost.
      left_ = std::min(left_ + more, burst_);
      at_ = now;
    }
    return left_;
  }
  // As much as there is, of what is asked for.
  void Take(uint64_t cost) { left_ -= std::min(left_, cost); }

 private:
  uint64_t burst_;
  double per_second_;
  uint64_t left_;
  absl::Time at_ = absl::InfinitePast();  // When there was so much.
};

}  // namespace epd
