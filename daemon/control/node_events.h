// What can happen to a node's control state. The shell makes these from messages, processes and
// timers.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/control/snapshots.h"
#include "daemon/control/uid_limits.h"
#include "daemon/core/execution.h"
#include "daemon/core/group_spec.h"
#include "daemon/core/ids.h"
#include "daemon/core/unique_id.h"
#include "daemon/core/worker_name.h"

namespace epd {

// ---- sessions ----

struct SessionAttached {
  SessionId session;
  int32_t pid = 0;
  uint32_t uid = 0;
  std::string host;
  std::string name;
  std::string version = {};  // Of the client.
  int64_t started = 0;       // Its process, in seconds of Unix time; 0: not said.
};

// Its socket has closed or its process is dead. Nothing about this session may be sent afterwards.
struct SessionGone {
  SessionId session;
  absl::Status reason;
};

// Answered exactly once by ReplyJoined or ReplyFailed, unless the session goes.
struct JoinRequested {
  SessionId session;
  RequestId request;
  GroupSpec spec;  // Every default filled in.
  std::vector<Rank> ranks = {};
  Epoch min_epoch;      // Highest epoch that the client has seen of this group.
  absl::Time deadline;  // Finite.
  GroupId proposed;     // A fresh random number, never zero: the id is made from it.
  // Of this node, that are to serve the ranks: one for each, or one for all.
  std::vector<WorkerName> workers = {kCpuWorker};
  NodeLimits limits = {};  // As they are set now.
};

// Answered exactly once by ReplyLeft, unless the session goes.
struct LeaveRequested {
  SessionId session;
  RequestId request;
  GroupId group;
  absl::Status why = {};  // What keeps it from taking part; OK: it is done.
};

// The session has nothing in flight in `formation`. May be repeated with higher counts until
// Joined.
struct SessionDrained {
  SessionId session;
  GroupId group;
  Formation formation;  // Of the last Joined.
  std::vector<ExecutionCount> counts;
};

// ---- workers ----

// The node has one more worker, which is down. Nothing happens when it has it already.
struct WorkerAdded {
  WorkerName name;
};

// `report.incarnation` is its new run.
struct WorkerStarted {
  WorkerReport report;
};

struct WorkerDied {
  Incarnation worker;  // Zero: it never got as far as WorkerStarted.
  absl::Status cause;
  WorkerName name = {};
};

// Answers to effects; ignored when `worker` is not the group's present one or the number is not the present
// one.
struct TenantReady {
  Incarnation worker;
  GroupId group;
  Formation formation;
};
struct TenantFailed {
  Incarnation worker;
  GroupId group;
  Formation formation;
  absl::Status status;
};
// It cannot go on, although its members may all live.
struct TenantBroken {
  Incarnation worker;
  GroupId group;
  Formation formation;
  absl::Status cause;
};
struct TenantDrained {
  Incarnation worker;
  GroupId group;
  Formation formation;
};
struct UniqueIdMade {
  Incarnation worker;
  GroupId group;
  Epoch epoch;
  absl::Status status;
  UniqueId id;  // When OK.
};
struct CommunicatorInitialised {
  Incarnation worker;
  GroupId group;
  Epoch epoch;
  absl::Status status;
  std::string sha256;  // Of the unique id's bytes; empty when there was none.
};

// ---- coordinator ----

// First message on a new stream (or, in one process, at the start). Views of other incarnations are
// ignored from here on.
struct CoordinatorConnected {
  Incarnation coordinator;
};
struct ViewReceived {
  ClusterView view;
};
// READY groups go on; waiting things keep their deadlines, and say the cause when they pass. Again with each new cause.
struct CoordinatorLost {
  absl::Status cause;
};

// ---- operators ----

// Answered by exactly one RpcDone, at the latest soon after `deadline`.
//   kCreate  the group lives without leases until it is closed
//   kDrain   new operations get FAILED_PRECONDITION, open ones may finish until `deadline`; then the group
//            is CLOSED. Done when it is: OK when all had finished, DEADLINE_EXCEEDED when some were cut off
//   kClose   like a drain whose deadline has passed
struct OrderRequested {
  Order order;  // `remaining` is not used.
  absl::Time deadline;
};

// Refuses joins, drains all groups of this node, then ends all sessions; at `deadline` ends them in
// any case.
struct ShutdownRequested {
  absl::Time deadline;
};

// Time has passed.
struct Tick {};

using NodeEvent =
    std::variant<SessionAttached, SessionGone, JoinRequested, LeaveRequested, SessionDrained,
                 WorkerAdded, WorkerStarted, WorkerDied, TenantReady, TenantFailed, TenantBroken,
                 TenantDrained, UniqueIdMade, CommunicatorInitialised, CoordinatorConnected,
                 ViewReceived, CoordinatorLost, OrderRequested, ShutdownRequested, Tick>;

}  // namespace epd
