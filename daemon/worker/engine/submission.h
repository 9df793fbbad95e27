// Names of what the engine works on.
#pragma once

#include <compare>
#include <cstdint>

#include "daemon/core/ids.h"

namespace epd {

// An operation: unique over all workers of a node's epd, never 0.
using OperationId = StrongId<struct OperationIdTag, uint64_t>;

// One claimed step of a slot. It is answered exactly once.
struct Submission {
  SessionId session;
  uint32_t slot = 0;
  uint32_t claim = 0;

  friend auto operator<=>(const Submission&, const Submission&) = default;
};

}  // namespace epd
