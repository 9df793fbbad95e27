// Small rows between workers, which go ahead of the announce, so that an operation's outcome takes no further round.
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

// Once all ranks of a worker have announced with their rows in eager buffers, it takes a landing for the rows of other
// workers' ranks, sends each of those its own (kRows), and announces. Rows wait, in no arena, until the worker that they
// came to has a landing; an operation that fails or goes through regions lets go of them.
//
// So who has sent rows can take the others', and whose announce says that its rows stand in eager buffers has sent them
// ahead of it. When the leader of two workers has both, all rows are there or on the stream in front of its word: it decides at once.
// A third worker's rows to the second are on a stream of their own. So of three or more each says when it has all rows
// (kRowsLanded), and the leader decides when all have: one message more, one behind the other. What it was told last it decides by, so
// a worker that has said so must take the leader's word, whenever it comes.
//
// Such rows can also come when their operation is over; they would wait for ever. So who has sent rows that are not to be taken says so
// behind them (kRowsOver).
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
  // their operation is good. Returns the operation that the leader may decide on by them, or null.
  Operation* Take(Tenant& tenant, Incarnation from, const PeerMessage& message);
  // Once this worker has announced.
  void TellLanded(Operation& operation);
  // The leader hears it; returns as Take.
  Operation* TakeLanded(Tenant& tenant, Incarnation from, const PeerMessage& message);
  // Nobody wants the rows of `from` that wait.
  void ForgetRows(Tenant& tenant, Incarnation from, const PeerMessage& message);
  // The leader does so once all have announced, with rows that went ahead, and agree. It waits for those who have not all rows.
  void Decide(Operation& operation);
  // What it then says.
  void TakeWord(Tenant& tenant, const PeerMessage& message);
  // The operation goes through regions.
  void GiveUp(Operation& operation);

 private:
  // False: they are more than the worker's ranks may have under way.
  bool Keep(Tenant& tenant, Operation* operation, Incarnation from, const PeerMessage& message);
  static bool CanBeDecided(const Operation& operation);
  void RefuseIncomplete(Operation& operation);
  void Land(Operation& operation, Rank rank);

  const Parts parts_;
};

}  // namespace epd
