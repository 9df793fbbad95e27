#include "daemon/node/workers/hold_up.h"

#include <algorithm>

namespace epd {

void HoldUp::Add(const Look& look, absl::Time now) {
  looked_at_ = now;
  const uint64_t touched = look.waits_in_kernel ? look.touched : 0;
  num_ = touched != 0 && touched == touched_ ? num_ + 1 : 1;
  touched_ = touched;
  if (touched_ != 0 && num_ >= kLooks) uid_ = static_cast<uint32_t>(touched_ - 1);
}

absl::Time HoldUp::NextLook(absl::Time asked_at) const {
  if (uid_.has_value() || asked_at == absl::InfiniteFuture()) return absl::InfiniteFuture();
  return std::max(asked_at + kFirst, looked_at_ + kEvery);
}

}  // namespace epd
