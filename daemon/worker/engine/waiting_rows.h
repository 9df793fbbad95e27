// Rows that have come ahead of their operation (rows_ahead.h), and the end of those that nobody will want.
#pragma once

#include "absl/functional/function_ref.h"
#include "daemon/worker/engine/effects.h"
#include "daemon/worker/engine/peer_messenger.h"
#include "daemon/worker/engine/tenant.h"

namespace epd {

inline RowsName NameOf(const Tenant& tenant, const OperationKey& key, Rank rank) {
  const Incarnation from = tenant.peers->node_of_rank[rank.value];
  return {from, tenant.start.group, tenant.start.formation, key, rank};
}

// Lets go of those of calls that are `over`.
inline void DropWaitingRows(Tenant& tenant, EngineEvent& event,
                            absl::FunctionRef<bool(const OperationKey&)> over) {
  if (!tenant.peers.has_value()) return;
  std::erase_if(tenant.peers->rows_ahead, [&](const auto& waiting) {
    if (!over(waiting.first)) return false;
    for (const Rank rank : waiting.second) {
      event.Add(DropRows{NameOf(tenant, waiting.first, rank)});
    }
    return true;
  });
}

// The same of calls that fail with `failed`.
inline void DropRowsOf(Tenant& tenant, const OperationKey& failed, EngineEvent& event) {
  DropWaitingRows(tenant, event, [&](const OperationKey& key) { return Covers(failed, key); });
}

// Says behind rows of this worker that went ahead to several that nobody will want them. What is said between two workers
// stands behind their rows anyway.
inline void TellRowsOver(const Operation& operation, PeerMessenger& messenger) {
  const Tenant& tenant = *operation.tenant;
  const OperationPeers::Ahead& ahead = operation.peers.ahead;
  if ((!ahead.sending && !ahead.sent) || tenant.peers->are_two()) return;
  messenger.SendToOthers(tenant, About(LeaderStep::kRowsOver, operation.key, absl::OkStatus()));
}

// The formation has ended.
inline void DropAllRows(Tenant& tenant, EngineEvent& event) {
  DropWaitingRows(tenant, event, [](const OperationKey&) { return true; });
}

}  // namespace epd
