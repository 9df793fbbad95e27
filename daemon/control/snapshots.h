// What a node and the coordinator tell each other. Both messages are full snapshots: a later one
// replaces every earlier one, so losing, repeating, reordering or delaying them changes nothing but
// the time things take.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/control/group_state.h"
#include "daemon/core/execution.h"
#include "daemon/core/group_spec.h"
#include "daemon/core/ids.h"
#include "daemon/core/rank_holder.h"
#include "daemon/core/shared_list.h"
#include "daemon/core/unique_id.h"
#include "daemon/core/worker_name.h"

namespace epd {

// ---- node to coordinator ----

// Whether a claim still stands. Released claims stay in the report until the coordinator has seen
// one with them.
enum class ClaimFate { kHeld, kLeft, kGone };

// What a session had begun when it had nothing in flight any more; `after`: it has nothing in
// flight of this formation and of all before it.
struct DrainRecord {
  Formation after;
  std::vector<ExecutionCount> counts;

  friend bool operator==(const DrainRecord&, const DrainRecord&) = default;
};

// One Join of one session, from its request to its release: asks for ranks at first, holds them
// later. Identified by (node, node incarnation, session, request).
struct Claim {
  SessionId session;
  RequestId request;
  std::string host;
  int32_t pid = 0;
  std::string client_name;
  std::string client_version;
  int64_t started = 0;  // The client's process, in seconds of Unix time; 0: not said.
  GroupSpec spec;
  std::vector<Rank> ranks;          // In the order of the Join.
  std::vector<WorkerName> workers;  // Of its node, which serves each of `ranks`; one: all of them.
  Epoch min_epoch;                  // The next epoch of the group is above it.
  absl::Duration remaining;         // Until the Join's deadline, when the claim was first reported.
                                    // Meaningless once joined.
  GroupId proposed;  // Random, never zero: the id is made from it if this claim creates the group.
  // What it has been told so far:
  Incarnation granted_by;  // Coordinator that granted it; zero: none yet.
  GroupId group;           // Zero: not granted yet.
  Formation joined;        // Last formation for which the session was told Joined; zero: never.
  std::optional<DrainRecord> drained;
  // Its ranks' bases in `bases_of`, the last formation that the node has started for it: what a
  // restarted coordinator continues from.
  Formation bases_of;
  std::vector<ExecutionBase> bases;
  ClaimFate fate = ClaimFate::kHeld;
  absl::Status fate_cause;  // Why it was released.

  // Which serves the rank at `index` of `ranks`.
  WorkerName worker_of_rank(size_t index) const {
    if (workers.empty()) return kCpuWorker;
    return index < workers.size() ? workers[index] : workers.front();
  }
};

enum class TenantPhase { kNone, kStarting, kReady, kFailed, kDrained };

// What one of a node's present workers has done for a group: for its communicator (the first three parts)
// or for one of its tenants (the last). Forgotten, but for `fenced`, when the worker dies.
struct GroupWork {
  GroupId group;  // Of the communicator, or of the tenant.
  WorkerName worker = {};
  GroupId communicator;  // Of a tenant: the one it uses. Zero for a communicator.
  // A worker that had begun to serve this epoch has died: the node does nothing more for it, nor
  // for older ones.
  Epoch fenced;
  // Answer to MakeUniqueId; epoch zero: none.
  Epoch id_epoch;
  absl::Status id_status;
  UniqueId id;  // Empty where it stays on the node.
  // Answer to InitCommunicator; epoch zero: none. `sha256` is of the bytes that the worker got,
  // empty without NCCL.
  Epoch init_epoch;
  absl::Status init_status;
  std::string init_sha256;
  // The tenant of the highest formation that was started; zero: none.
  Formation formation;
  TenantPhase phase = TenantPhase::kNone;
  absl::Status tenant_status;
  Formation broken;  // Cannot go on, although its members may all live; zero: none.
  absl::Status broken_cause;
  // The node has members, bases and workers of this formation, from the coordinator that the report
  // is for: views need not repeat them. Zero: of none.
  Formation heard;
};

// One worker of a node.
struct WorkerReport {
  WorkerName name;
  Incarnation incarnation;  // Zero: down.
  bool has_nccl = false;
  std::string nccl_problem;  // Why there is no NCCL; empty when there is.
  std::string nccl_version = {};
  std::string wire_address = {};  // Where it takes streams of other nodes' workers; empty: nowhere.
  std::string local_address = {};  // ... and of its own node's; empty: at the same place.
  std::string wire_secret = {};    // Of its epd's run; whoever is to call it is told. Never logged.
  std::string down_because =
      {};  // How its last run ended, or why it does not start; empty: it is up, or begins.

  friend bool operator==(const WorkerReport&, const WorkerReport&) = default;
};

// What must agree between the nodes of a group before their workers meet.
struct NodeFacts {
  std::string epd_version;
  uint32_t exchange = 0;            // Version of what workers say to each other.
  std::string nccl_version = {};    // Of the worker that serves the group; empty: no NCCL.
  std::string driver_version = {};  // Of the GPU; empty: none.
  // Of its wall clock against the coordinator's, as the receiver of the report measured it.
  absl::Duration clock_offset = {};
};

enum class OrderKind { kCreate, kDrain, kClose };

// What an operator wants done to a group; repeated in every report until it is answered.
struct Order {
  RequestId request;
  OrderKind kind = OrderKind::kCreate;
  GroupSpec spec = {};            // kCreate
  GroupId proposed = {};          // kCreate: random, never zero.
  GroupId group = {};             // kDrain, kClose; zero: by name.
  std::string name = {};          // kDrain, kClose
  absl::Duration remaining = {};  // Until its deadline, when it was first reported.
  bool node_stops = false;        // kDrain: the node itself asks, for it stops; members come back.
};

// All that a node has. Ordered by `seq` within one (node, incarnation).
struct NodeReport {
  NodeId node;
  Incarnation incarnation;
  uint64_t seq = 0;
  Incarnation coordinator;  // The one that the node followed when these were seen; zero: none.
  Epoch max_epoch;          // Highest epoch of any group that this node has seen,
  Formation max_formation;  // ... and the highest formation.
  std::vector<WorkerReport> workers;  // By name.
  NodeFacts facts;                    // With the NCCL of the CPU's worker.
  std::vector<Claim> claims;
  std::vector<GroupWork> work;
  std::vector<Order> orders;
};

// ---- on both sides ----

// For the one info line per transition. `from` == kCount: the group is new.
struct GroupTransition {
  GroupId group;
  std::string name;
  Epoch epoch = {};
  Formation formation = {};
  GroupState from = GroupState::kCount;
  GroupState to = GroupState::kForming;
  absl::Status why = {};
  GroupEvent event = GroupEvent::kCount;  // Of the coordinator.
};

// ---- coordinator to node ----

enum class ClaimDisposition {
  kWaiting,  // `status` says what for; the Join's deadline runs.
  kGranted,  // It is a member of `group`.
  kFailed,   // `status` says why; final.
};

struct ClaimAnswer {
  SessionId session;
  RequestId request;
  ClaimDisposition disposition = ClaimDisposition::kWaiting;
  GroupId group;
  absl::Status status;

  friend bool operator==(const ClaimAnswer&, const ClaimAnswer&) = default;
};

// Present once the order is done, well or not.
struct OrderAnswer {
  RequestId request;
  absl::Status status;
  GroupId group;

  friend bool operator==(const OrderAnswer&, const OrderAnswer&) = default;
};

// One of the workers that serve a group, for the others.
struct ServingWorker {
  NodeId node;
  Incarnation worker;
  std::string wire_address;
  WorkerName name = {};
  std::string local_address = {};  // As in WorkerReport.
  std::string wire_secret = {};    // As in WorkerReport.

  friend bool operator==(const ServingWorker&, const ServingWorker&) = default;
};

// A process that asked for a rank of a group which another one holds: perhaps two jobs have met under one name.
struct RivalClaim {
  RankHolder who;  // `rank`: what it asked for.
  bool waits =
      false;  // It belongs to another run (spec.instance) and waits for this one's end; false: it was refused.

  friend bool operator==(const RivalClaim&, const RivalClaim&) = default;
};
// An operator looks at the newest; a process that asks again and again is one.
inline constexpr size_t kMaxRivals = 16;

// What everybody who speaks of one tenant of a group says of it.
struct GroupFacts {
  GroupId id;
  GroupSpec spec;
  GroupState state = GroupState::kForming;
  Epoch epoch;  // Of the communicator, in which it is or last was; zero before the first bootstrap.
  Formation formation;  // Zero before the first start.
  Formation served;     // The last that was READY, by anybody's knowledge; zero: none.
  absl::Status cause;   // Why it is not READY: what ended `served`.
  std::vector<RivalClaim> rivals = {};  // The newest last.

  friend bool operator==(const GroupFacts&, const GroupFacts&) = default;
};

// One tenant of a group in which the node holds a rank. `started` says whether the tenants of
// `formation` are to run; when it is false that formation, and all before it, has ended with
// `cause`.
struct GroupView : GroupFacts {
  GroupId communicator;  // Equal for all tenants of the group.
  bool started = false;
  bool wait = false;  // Whether READY comes back by itself (else calls fail at once).
  // By rank; may have gaps while forming or degraded. `own_members_only`: other nodes' are not said.
  SharedList<RankHolder> members;
  bool own_members_only = false;
  std::vector<RankHolder> dead;     // Last holders of ranks that are free, by rank.
  SharedList<ExecutionBase> bases;  // Of `formation`; all ranks.
  absl::Status base_cause;          // Why executions below the bases fail.
  // Unique id of `epoch`.
  std::optional<WorkerName> id_maker;  // Of this node, which must make it.
  bool id_stays = false;  // All workers are this node's: it hands the id to them and tells nobody.
  bool id_known = false;  // `unique_id` is decided; initialise the communicator with it.
  UniqueId unique_id;     // Empty: none, and `no_id_reason` says why; or it stays.
  std::string no_id_reason;              // "none: ..."
  SharedList<ServingWorker> workers;     // While `started`: of all nodes of the group.
  std::vector<WorkerName> node_workers;  // Of this node, in `epoch`, by name; none before an epoch.
  // `members`, `bases` and `workers` are left out: the node has said that it has those of
  // `formation`, and they are still the same.
  bool kept = false;

  friend bool operator==(const GroupView&, const GroupView&) = default;
};

// All that a node needs to know. Ordered by `seq` within one coordinator incarnation.
struct ClusterView {
  Incarnation coordinator;
  uint64_t seq = 0;
  NodeId node;
  Incarnation node_incarnation;
  uint64_t report_seq =
      0;  // The newest report of this node that is taken into account; zero: none.
  std::vector<GroupView> groups;
  std::vector<ClaimAnswer> claims;  // Every claim of that report.
  std::vector<OrderAnswer> orders;
};

}  // namespace epd
