// The event that the engine works on: its time, and the effects that it has so far.
#pragma once

#include <utility>

#include "absl/time/time.h"
#include "daemon/worker/engine/effects.h"

namespace epd {

struct EngineEvent {
  absl::Time now;
  Effects effects;

  void Add(Effect effect) { effects.push_back(std::move(effect)); }
};

}  // namespace epd
