// Which operations traces keep where there are more than it may cost to look at: one of 2^k, by what names an operation. So the workers
// of all its ranks keep the same ones, and what is kept at k + 1 is among what is kept at k.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace epd {

// Finds k for parts of operations that come at any rate, within seconds. Not thread-safe.
class TraceSample {
 public:
  // 0: all are kept.
  explicit TraceSample(uint64_t parts_per_second) : limit_(parts_per_second) {}

  // Of a part of the operation with this hash: 0, it is left out; else 2^k, it stands for so many.
  uint32_t Take(uint64_t hash, absl::Time now);

 private:
  const uint64_t limit_;
  int k_ = 0;
  uint64_t num_kept_ = 0;  // Since `begun_`.
  absl::Time begun_ = absl::InfinitePast();
};

}  // namespace epd
