#include "daemon/observe/line_limits.h"

namespace epd {

bool LineLimits::Admit(uint32_t uid, absl::string_view what, absl::Time now) {
  Kind& kind = kinds_[{uid, std::string(what)}];
  if (kind.allowance.Left(now) == 0) {
    ++kind.num_left_out;
    return false;
  }
  kind.allowance.Take(1);
  return true;
}

std::vector<LineLimits::LeftOut> LineLimits::TakeLeftOut(absl::Time now) {
  std::vector<LeftOut> all;
  if (now - told_ < kTellEvery) return all;
  told_ = now;
  for (auto it = kinds_.begin(); it != kinds_.end();) {
    auto& [key, kind] = *it;
    if (kind.num_left_out > 0) all.push_back({key.first, key.second, kind.num_left_out});
    kind.num_left_out = 0;
    it = kind.allowance.Left(now) == kAtOnce ? kinds_.erase(it) : std::next(it);
  }
  return all;
}

}  // namespace epd
