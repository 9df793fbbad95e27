// What reaches the exec thread from the streams.
#pragma once

#include <variant>

#include "absl/status/status.h"
#include "daemon/worker/effects.h"
#include "daemon/worker/span.h"

namespace epd {

struct PeerSaid {
  Incarnation peer;
  SpanMessage message;
};
struct PeerGone {
  Incarnation peer;
  absl::Status cause;
};
struct RowsCame {
  SpanOperation operation;
  Rank rank;
};
struct StageRefused {
  SpanOperation operation;
  Rank rank;
  absl::Status cause;
};
// Its certificate does not belong to this cluster.
struct PeerRefused {
  absl::Status why;
};

using WireEvent = std::variant<PeerSaid, PeerGone, RowsCame, StageRefused, PeerRefused>;

}  // namespace epd
