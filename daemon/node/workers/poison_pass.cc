#include "daemon/node/workers/poison_pass.h"

#include <bit>

namespace epd {

bool PoisonPass::Turn(const std::vector<PoisonTarget>& targets, const shm::RecordsView& records,
                      const PoisonCause& cause, Poisoned& poisoned) {
  const uint64_t end = poisoned.num_looked + kLookedInTurn;
  if (!last_ && !targets.empty()) last_ = targets.back().session;
  for (const PoisonTarget& target : targets) {
    if (target.session > last_) break;
    if (target.session < session_) continue;
    uint64_t groups = target.slots.UsedGroups();
    if (target.session == session_) groups &= ~uint64_t{0} << group_;
    for (; groups != 0; groups &= groups - 1) {
      const auto group = static_cast<uint32_t>(std::countr_zero(groups));
      if (poisoned.num_looked >= end) {
        session_ = target.session;
        group_ = group;
        return false;
      }
      PoisonGroup(target, group, records, cause, poisoned);
    }
  }
  BeginAnew();
  return true;
}

}  // namespace epd
