// How operations on several nodes are named in messages. Private to the engine.
#pragma once

#include "daemon/worker/engine/effects.h"
#include "daemon/worker/engine/operation.h"
#include "daemon/worker/engine/peer_message.h"
#include "daemon/worker/engine/tenant.h"

namespace epd {

inline PeerOperation NameOf(const Operation& operation) {
  return {operation.tenant->start.group, operation.tenant->start.formation, operation.peers.number};
}

inline PeerMessage About(LeaderStep step, const Operation& operation) {
  PeerMessage message;
  message.step = step;
  message.number = operation.peers.number;
  return message;
}

inline PeerMessage About(LeaderStep step, const OperationKey& key, const absl::Status& cause) {
  PeerMessage message;
  message.step = step;
  message.key = key;
  message.cause = cause;
  return message;
}

// Whether a failure of `failed` is one of what `key` names, too.
inline bool Covers(const OperationKey& failed, const OperationKey& key) {
  if (failed.named || key.named) return failed == key;
  return failed.execution == key.execution;
}

}  // namespace epd
