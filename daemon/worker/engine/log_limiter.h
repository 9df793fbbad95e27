// Keeps a flood of lines out of epd's log.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace epd {

// Lets at most `kLinesPerPeriod` lines through in each period and counts the others.
class LogLimiter {
 public:
  static constexpr int kLinesPerPeriod = 50;
  static constexpr absl::Duration kPeriod = absl::Seconds(1);

  // Whether a line may go out at `now`.
  bool Admit(absl::Time now) {
    if (now - period_begin_ >= kPeriod) {
      period_begin_ = now;
      num_lines_ = 0;
    }
    if (num_lines_ >= kLinesPerPeriod) {
      ++num_dropped_;
      return false;
    }
    ++num_lines_;
    return true;
  }
  // Lines kept out since the last call.
  uint64_t TakeDropped() {
    const uint64_t dropped = num_dropped_;
    num_dropped_ = 0;
    return dropped;
  }

 private:
  absl::Time period_begin_ = absl::InfinitePast();
  int num_lines_ = 0;
  uint64_t num_dropped_ = 0;
};

}  // namespace epd
