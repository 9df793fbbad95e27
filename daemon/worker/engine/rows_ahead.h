// Small rows between two workers, which go ahead of the announce, so that an operation's outcome takes no further round.
#pragma once

#include "daemon/core/ids.h"
#include "daemon/worker/engine/effects.h"
#include "daemon/worker/engine/failures.h"
#include "daemon/worker/engine/operation.h"
#include "daemon/worker/engine/operation_phases.h"
#include "daemon/worker/engine/operation_table.h"
#include "daemon/worker/engine/peer_message.h"
#include "daemon/worker/engine/peer_messenger.h"
#include "daemon/worker/engine/tenant.h"
#include "daemon/worker/staging/staging.h"

namespace epd {

// Once all ranks of a worker have announced with their rows in eager buffers, it takes a landing for the rows of the
// other worker's ranks, sends that one its own (kRows), and announces. Rows wait, in no arena, until the worker that they
// came to has a landing; an operation that fails or goes through regions lets go of them.
//
// So who has sent rows can take the other's, and whose announce says that its rows stand in eager buffers has sent them
// ahead of it. When the leader has both, all rows are there or on the stream in front of its word: it decides at once. With a
// third worker that would not hold, since its rows to the second are on a stream of their own: there rows go by regions.
//
// Owns nothing: what it changes are the operation's and the tenant's peers' parts of it. Not thread-safe.
class RowsAhead {
 public:
  struct Parts {
    OperationTable& table;
    OperationPhases& phases;
    Staging& staging;
    Failures& failures;
    PeerMessenger& messenger;
    EngineEvent& event;
  };
  explicit RowsAhead(const Parts& parts) : parts_(parts) {}

  // Whether the operation is to wait until its ranks' rows are under way (Exchange::RowsAheadSent); asks for it the
  // first time that all ranks of this worker have announced.
  bool Sends(Operation& operation);
  // They are. Whether the operation goes on.
  static bool Sent(Operation& operation);
  // Rows of a rank of `from` have come. Also when the formation has ended: the leader may have decided meanwhile that
  // their operation is good.
  void Take(Tenant& tenant, Incarnation from, const PeerMessage& message);
  // The leader does so once all have announced, with rows that went ahead, and agree.
  void Decide(Operation& operation);
  // What it then says.
  void TakeWord(Tenant& tenant, const PeerMessage& message);
  // The operation goes through regions.
  void GiveUp(Operation& operation);

 private:
  // False: they are more than the worker's ranks may have under way.
  bool Keep(Tenant& tenant, Operation* operation, Incarnation from, const PeerMessage& message);
  void RefuseIncomplete(Operation& operation);
  void Land(Operation& operation, Rank rank);

  const Parts parts_;
};

}  // namespace epd
