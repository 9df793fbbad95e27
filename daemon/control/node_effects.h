// What a node's control state wants done. The shell carries these out, in order, in one switch.
#pragma once

#include <set>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "daemon/control/group_state.h"
#include "daemon/control/snapshots.h"
#include "daemon/core/execution.h"
#include "daemon/core/group_spec.h"
#include "daemon/core/ids.h"
#include "daemon/core/rank_holder.h"
#include "daemon/core/shared_list.h"
#include "daemon/core/unique_id.h"
#include "daemon/core/worker_name.h"

namespace epd {

// To the coordinator. Only the newest matters.
struct SendReport {
  NodeReport report;
};

// ---- to the worker `to`; only sent while it is up ----

// Make arenas for the members that it serves and serve `formation`. Answer: TenantReady or
// TenantFailed.
struct StartTenant {
  Incarnation coordinator;  // Numbers of different ones are not comparable: part of the fence.
  GroupId group;
  Epoch epoch;
  Formation formation;
  GroupSpec spec;
  SharedList<RankHolder>
      members;  // All ranks; those that `to` of this node does not serve are remote.
  SharedList<ExecutionBase> bases;
  absl::Status base_cause;                 // Executions below the bases fail with it.
  SharedList<ServingWorker> workers = {};  // All that serve the group.
  WorkerName to = {};
  GroupId communicator = {};  // As in InitCommunicator.
};
// Fail everything in flight and all later announces of `formation` with `status`. No answer.
struct EndTenant {
  GroupId group;
  Formation formation;
  absl::Status status;
  WorkerName to = {};
};
// No session will be sent what the worker made for the group: its TenantReady came when the group had ended.
struct ForgetArenas {
  GroupId group;
};
// Refuse new announces with FAILED_PRECONDITION. Answer: TenantDrained once nothing is open;
// EndTenant follows in any case.
struct DrainTenant {
  GroupId group;
  Formation formation;
  WorkerName to = {};
  bool in_order = false;  // As in worker.proto.
};
// Answer: UniqueIdMade. `group` is the communicator's id in these two.
struct MakeUniqueId {
  GroupId group;
  Epoch epoch;
  WorkerName to = {};
};
// Answer: CommunicatorInitialised. An empty id: no NCCL in this group, `no_id_reason` says why.
struct InitCommunicator {
  Incarnation coordinator;  // Part of the fence.
  GroupId group;
  Epoch epoch;
  UniqueId id;
  std::string no_id_reason;
  WorkerName to = {};
};

// ---- to sessions ----

// The group is READY. `request` is zero after a re-formation. Send the arenas of all ranks of this
// node along.
struct ReplyJoined {
  SessionId session;
  RequestId request;
  Incarnation coordinator;  // Part of the fence.
  GroupId group;
  Epoch epoch;
  Formation formation;
  GroupSpec spec;
  SharedList<RankHolder> members;     // By rank.
  std::set<WorkerName> workers = {};  // That serve the session's ranks.
};
struct ReplyFailed {
  SessionId session;
  RequestId request;
  absl::Status status;
};
struct ReplyLeft {
  SessionId session;
  RequestId request;
  absl::Status status;
};
// `formation` has ended with `cause`. wait: READY comes back by itself, callers wait; else callers
// fail at once. May be sent again for one formation when `wait` becomes false.
struct NotifyReform {
  SessionId session;
  GroupId group;
  Formation formation;
  absl::Status cause;
  bool wait = false;
};
// The group takes no new operations and ends soon, with `cause`.
struct NotifyDraining {
  SessionId session;
  GroupId group;
  absl::Status cause;
};
// The session is no member of `group` any more.
struct NotifyGroupEnded {
  SessionId session;
  GroupId group;
  absl::Status status;
};
// Say goodbye and close its socket; SessionGone is still expected.
struct EndSession {
  SessionId session;
  absl::Status status;
};

// ---- others ----

// GroupTransition: this node has learnt of it, without the event; for its log. The coordinator's own log has all.

// For the log: another process asks for a rank of the group, which one of this node's group holds.
struct RankContested {
  GroupId group;
  std::string name;
  Epoch epoch;
  RivalClaim rival;
};

struct RpcDone {
  RequestId request;
  absl::Status status;
  GroupId group;
};
// All sessions have been told to end; the process may stop its workers and exit.
struct ShutdownDone {};

using NodeEffect = std::variant<SendReport, StartTenant, EndTenant, ForgetArenas, DrainTenant,
                                MakeUniqueId, InitCommunicator, ReplyJoined, ReplyFailed, ReplyLeft,
                                NotifyReform, NotifyDraining, NotifyGroupEnded, EndSession,
                                GroupTransition, RankContested, RpcDone, ShutdownDone>;

}  // namespace epd
