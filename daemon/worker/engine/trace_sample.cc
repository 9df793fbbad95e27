#include "daemon/worker/engine/trace_sample.h"

#include <algorithm>

namespace epd {
namespace {

constexpr int kMost = 20;
// So much below the limit twice as many are kept again.
constexpr uint64_t kReserve = 4;

}  // namespace

uint32_t TraceSample::Take(uint64_t hash, absl::Time now) {
  if (limit_ == 0) return 1;
  const int64_t windows = absl::ToInt64Seconds(now - begun_);
  if (windows >= 1) {
    // In the windows behind the first one nothing was kept.
    const int64_t fewer = windows - 1 + (num_kept_ * kReserve < limit_ ? 1 : 0);
    k_ -= static_cast<int>(std::min<int64_t>(fewer, k_));
    begun_ = now;
    num_kept_ = 0;
  }
  if ((hash & ((uint64_t{1} << k_) - 1)) != 0) return 0;
  const uint32_t stands_for = uint32_t{1} << k_;
  if (++num_kept_ >= limit_ && k_ < kMost) {
    ++k_;
    begun_ = now;
    num_kept_ = 0;
  }
  return stands_for;
}

}  // namespace epd
