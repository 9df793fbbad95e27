// What the workers of one group do with each other's messages: peer_message.h says what these mean.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "daemon/core/ids.h"
#include "daemon/worker/engine/admission_queue.h"
#include "daemon/worker/engine/effects.h"
#include "daemon/worker/engine/failures.h"
#include "daemon/worker/engine/operation.h"
#include "daemon/worker/engine/operation_phases.h"
#include "daemon/worker/engine/operation_table.h"
#include "daemon/worker/engine/peer_message.h"
#include "daemon/worker/engine/peer_messenger.h"
#include "daemon/worker/engine/rows_ahead.h"
#include "daemon/worker/engine/tenant.h"

namespace epd {

// Carries an operation of several workers from its announces to its outcome, on the leader and on the others. Messages
// come in; what follows is done to the parts below, and said to others by the messenger. Owns the order in which
// operations enter communicators. Not thread-safe.
class LeaderProtocol {
 public:
  struct Parts {
    OperationTable& table;
    OperationPhases& phases;
    AdmissionQueue& queue;
    Failures& failures;
    PeerMessenger& messenger;
    RowsAhead& ahead;
    EngineEvent& event;
  };
  explicit LeaderProtocol(const Parts& parts) : parts_(parts) {}

  // Handles what `from`, a worker of the tenant, says. Returns the operation that more ranks have announced by it, or
  // more rows have come for, or null.
  Operation* HandleMessage(Tenant& tenant, Incarnation from, const PeerMessage& message);

  // This worker's ranks, or those that have come, have announced the operation.
  void TellAnnounced(const Operation& operation);
  // The leader does so once all have announced, and agree.
  void AskReserve(Operation& operation, uint64_t bytes);
  // It has its region here.
  void TellGranted(Operation& operation);
  // Asks for the regions of everything that is behind `older` and not admitted.
  void AskRevokes(const Ticket& older);
  // A rank of this worker has published: its rows go to the other workers.
  void SendStage(const Operation& operation, uint32_t rank);
  // Goes on once all ranks of this worker have published and all rows are here.
  void MaybePublished(Operation& operation);
  void TellPublished(Operation& operation);
  void RowsLanded(Operation& operation, Rank rank);
  void RowsPrepared(const Operation& operation, PreparedRows rows);

  // A tenant drains in order, and no stream of its ranks here has anything in it from before.
  void StreamsIdle(Tenant& tenant);

  Operation* Find(const Tenant& tenant, uint64_t number) const;

 private:
  void Tell(Tenant& tenant, Incarnation to, PeerMessage message);
  void HandleAsLeader(Tenant& tenant, Incarnation from, const PeerMessage& message);
  void HandleOfLeader(Tenant& tenant, const PeerMessage& message);
  Operation* OnAnnounce(Tenant& tenant, Incarnation from, const PeerMessage& message);
  void OnReserve(Tenant& tenant, const PeerMessage& message);
  void OnGranted(Tenant& tenant, Incarnation from, const PeerMessage& message);
  void OnRevoke(Tenant& tenant, Incarnation from, const PeerMessage& message);
  void OnRevoked(Tenant& tenant, const PeerMessage& message);
  void OnAdmit(Tenant& tenant, const PeerMessage& message);
  void OnPrepared(Tenant& tenant, Incarnation from, const PeerMessage& message);
  void GiveIssuePlace(Operation& operation);
  void OnIssue(Tenant& tenant, const PeerMessage& message);
  void OnPublished(Tenant& tenant, Incarnation from, const PeerMessage& message);
  void OnDecided(Tenant& tenant, const PeerMessage& message);
  void OnStreamsIdle(Tenant& tenant, Incarnation from);

  const Parts parts_;
  std::map<std::pair<GroupId, Epoch>, uint64_t> next_place_;  // By communicator; the leader's.
};

}  // namespace epd
