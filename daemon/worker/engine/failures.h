// What a failure takes along: an operation, its execution, a generation, or the formation; on all workers alike.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "daemon/core/ids.h"
#include "daemon/worker/engine/effects.h"
#include "daemon/worker/engine/operation.h"
#include "daemon/worker/engine/operation_phases.h"
#include "daemon/worker/engine/operation_table.h"
#include "daemon/worker/engine/peer_message.h"
#include "daemon/worker/engine/peer_messenger.h"
#include "daemon/worker/engine/tenant.h"

namespace epd {

// Where several workers serve a tenant only its leader decides (leader_protocol.h): the others ask it to. Not
// thread-safe.
class Failures {
 public:
  Failures(OperationTable& table, OperationPhases& phases, PeerMessenger& messenger,
           EngineEvent& event)
      : table_(table), phases_(phases), messenger_(messenger), event_(event) {}

  // Ranks that make calls for themselves come to the worker from here on. Before any answer that says a failure.
  void EndDirectOf(const Tenant& tenant);
  // The operation cannot end well, and with it its execution.
  void FailWithExecution(Operation& operation, const absl::Status& cause);
  // A rank has given up the operation of `key` before it took part. `unsynchronised`: its call is of a stream, and may not
  // be synchronised.
  void FailCall(Tenant& tenant, const OperationKey& key, Rank rank, const absl::Status& cause,
                bool unsynchronised);
  // Every execution that a rank has begun fails.
  void EndGeneration(Tenant& tenant, const absl::Status& cause);
  // The same, where ranks have begun different numbers of them (execution_history.h).
  void EndDivergedGeneration(Tenant& tenant, const absl::Status& cause);
  void EndFormation(Tenant& tenant, const absl::Status& cause);
  // This worker ends and will hear nothing more.
  void EndFormationAtOnce(Tenant& tenant, const absl::Status& cause);
  // The same, and `why` is all that is known: ranks that other workers serve are told which worker of which node is gone.
  void EndWithWorker(Tenant& tenant, absl::string_view why);

  // When every rank waits and no two sets of calls in streams match, all but one call fail; the ranks that made them
  // go on to their next ones, and so come to that one, or to an earlier one of the program, where they match.
  void SynchroniseStreams(Tenant& tenant);
  // All ranks have come to `operation`, or passed it: from here on calls in streams count, also those that wait elsewhere.
  void NoteSynchronised(const Operation& operation);

  // ---- several workers ----

  // Asks the leader, which may be this worker.
  void AskLeaderToFail(Tenant& tenant, const OperationKey& key, const absl::Status& cause,
                       bool unsynchronised);
  // What the leader does. `unsynchronised`: the call is of streams; whether they are synchronised the leader knows.
  void FailAsLeader(Tenant& tenant, const OperationKey& key, const absl::Status& cause,
                    bool unsynchronised);
  // What `message` announces has failed before its worker knew.
  bool IsVoid(const Tenant& tenant, const PeerMessage& message) const;
  void OnRefused(Tenant& tenant, Incarnation from, const PeerMessage& message);
  void OnFailed(Tenant& tenant, const PeerMessage& message);
  // A drain in order of which only others know yet: their members hear why before anything is refused, and so shall those
  // here. Such a refusal, and what comes after it, waits until this worker drains as well; a formation's end ends the calls
  // without it. False: `message` is none to be held.
  bool HoldRefusal(Tenant& tenant, Incarnation from, const PeerMessage& message);
  // This worker drains.
  void HearRefusals(Tenant& tenant);
  void OnFailedSeen(Tenant& tenant, Incarnation from, const PeerMessage& message);
  void OnEnded(Tenant& tenant, Incarnation from, const PeerMessage& message);
  // The stream from or to a worker of the tenant is lost.
  void PeerLost(Tenant& tenant, Incarnation peer, const absl::Status& cause);

 private:
  // What its ranks' rows went ahead to hears that they are over.
  void Fail(Operation& operation, const absl::Status& cause);
  void FailLocally(Tenant& tenant, const OperationKey& key, const absl::Status& cause,
                   bool unsynchronised);
  void FailExecution(Tenant& tenant, const OperationKey& key, const absl::Status& cause,
                     std::vector<bool> may_come);
  void EndWithPeers(Tenant& tenant, const absl::Status& cause, bool leader_spoke, bool report);
  void CancelMoves(const Tenant& tenant);

  OperationTable& table_;
  OperationPhases& phases_;
  PeerMessenger& messenger_;
  EngineEvent& event_;
};

// The operation is called from streams that are not synchronised.
bool IsUnsynchronised(const Operation& operation);

}  // namespace epd
