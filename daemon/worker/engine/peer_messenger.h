// What is said to the other workers of a group, under Lamport's clock.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "daemon/core/ids.h"
#include "daemon/worker/engine/effects.h"
#include "daemon/worker/engine/operation.h"
#include "daemon/worker/engine/peer_message.h"
#include "daemon/worker/engine/tenant.h"

namespace epd {

// ---- how operations of several workers are named in messages ----

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

// Draws tickets, and says with every message how far its clock is. Not thread-safe.
class PeerMessenger {
 public:
  PeerMessenger(Incarnation self, EngineEvent& event) : self_(self), event_(event) {}

  Incarnation self() const { return self_; }
  // Behind every ticket that this worker has heard of.
  Ticket DrawTicket() { return {++clock_, self_}; }
  void Hear(const PeerMessage& message) { clock_ = std::max(clock_, message.clock); }

  void Send(const Tenant& tenant, Incarnation to, PeerMessage message) {
    event_.Add(SendToPeer{.peer = to, .message = Signed(tenant, std::move(message))});
  }
  // As it is sent, by another effect than SendToPeer.
  PeerMessage Signed(const Tenant& tenant, PeerMessage message) const {
    message.group = tenant.start.group;
    message.formation = tenant.start.formation;
    message.clock = clock_;
    return message;
  }
  // To all workers of the tenant but this one.
  void SendToOthers(const Tenant& tenant, const PeerMessage& message) {
    for (const PeerWorker& node : tenant.peers->nodes) {
      if (node.worker != self_) Send(tenant, node.worker, message);
    }
  }

 private:
  const Incarnation self_;
  EngineEvent& event_;
  uint64_t clock_ = 0;
};

}  // namespace epd
