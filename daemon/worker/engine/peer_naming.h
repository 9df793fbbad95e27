// How operations on several nodes are named in messages. Private to exchange_leader*.cc.
#pragma once

#include <algorithm>
#include <vector>

#include "daemon/worker/engine/effects.h"
#include "daemon/worker/engine/leader_protocol.h"
#include "daemon/worker/engine/operation.h"
#include "daemon/worker/engine/tenant.h"

namespace epd {

inline std::vector<Rank> RanksOf(const TenantPeers& peers, Incarnation node) {
  std::vector<Rank> ranks;
  for (uint32_t r = 0; r < peers.node_of_rank.size(); ++r) {
    if (peers.node_of_rank[r] == node) ranks.push_back(Rank(r));
  }
  return ranks;
}

inline bool Serves(const TenantPeers& peers, Incarnation node) {
  return std::any_of(peers.nodes.begin(), peers.nodes.end(),
                     [node](const PeerWorker& known) { return known.worker == node; });
}

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
