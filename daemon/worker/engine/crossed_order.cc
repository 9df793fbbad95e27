#include "daemon/worker/engine/crossed_order.h"

namespace epd {
namespace {

// Some rank waits in `waiting` while `missing` still lacks it.
bool WaitsFor(const Operation& missing, const Operation& waiting) {
  for (size_t r = 0; r < missing.parts.size(); ++r) {
    if (missing.parts[r].state == PartState::kAbsent &&
        waiting.parts[r].state == PartState::kAnnounced) {
      return true;
    }
  }
  return false;
}

}  // namespace

const Operation* FindCrossed(const Operation& operation, const std::vector<Operation*>& others) {
  for (const Operation* other : others) {
    if (other == &operation || other->phase != Phase::kGathering) continue;
    if (WaitsFor(operation, *other) && WaitsFor(*other, operation)) return other;
  }
  return nullptr;
}

}  // namespace epd
