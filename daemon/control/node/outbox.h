// One call of a node's control state: when it is, what is to be done, and whether the coordinator
// must hear of it.
#pragma once

#include <algorithm>

#include "daemon/control/node_effects.h"

namespace epd {

class Outbox {
 public:
  // Time does not run backwards.
  void Begin(absl::Time now) { now_ = std::max(now_, now); }
  absl::Time now() const { return now_; }

  void Add(NodeEffect effect) { effects_.push_back(std::move(effect)); }
  std::vector<NodeEffect> TakeEffects() { return std::exchange(effects_, {}); }

  // What reports say has changed.
  void MarkChanged() { changed_ = true; }
  bool changed() const { return changed_; }
  void ClearChanged() { changed_ = false; }

 private:
  absl::Time now_ = absl::InfinitePast();
  std::vector<NodeEffect> effects_;
  bool changed_ = false;
};

}  // namespace epd
