// What reaches the exec thread from the streams.
#pragma once

#include <variant>

#include "absl/status/status.h"
#include "daemon/worker/engine/effects.h"
#include "daemon/worker/engine/peer_message.h"

namespace epd {

struct PeerSaid {
  Incarnation peer;
  PeerMessage message;
};
struct PeerGone {
  Incarnation peer;
  absl::Status cause;
};
struct RowsCame {
  PeerOperation operation;
  Rank rank;
};
struct StageRefused {
  PeerOperation operation;
  Rank rank;
  absl::Status cause;
};
// Its certificate does not belong to this cluster.
struct PeerRefused {
  absl::Status why;
};

using WireEvent = std::variant<PeerSaid, PeerGone, RowsCame, StageRefused, PeerRefused>;

}  // namespace epd
