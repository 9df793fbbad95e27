// How operations on several nodes are named in messages. Private to exchange_span*.cc.
#pragma once

#include <algorithm>
#include <vector>

#include "daemon/worker/effects.h"
#include "daemon/worker/operation.h"
#include "daemon/worker/span.h"
#include "daemon/worker/tenant.h"

namespace epd {

inline std::vector<Rank> RanksOf(const TenantSpan& span, Incarnation node) {
  std::vector<Rank> ranks;
  for (uint32_t r = 0; r < span.node_of_rank.size(); ++r) {
    if (span.node_of_rank[r] == node) ranks.push_back(Rank(r));
  }
  return ranks;
}

inline bool Serves(const TenantSpan& span, Incarnation node) {
  return std::any_of(span.nodes.begin(), span.nodes.end(),
                     [node](const SpanNode& known) { return known.worker == node; });
}

inline SpanOperation NameOf(const Operation& operation) {
  return {operation.tenant->start.group, operation.tenant->start.formation, operation.span.number};
}

inline SpanMessage About(SpanStep step, const Operation& operation) {
  SpanMessage message;
  message.step = step;
  message.number = operation.span.number;
  return message;
}

inline SpanMessage About(SpanStep step, const OperationKey& key, const absl::Status& cause) {
  SpanMessage message;
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
