// The coordinator's records: nodes, their claims, and groups. Plain data; rendezvous_impl.h has the
// rules.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/control/group_state.h"
#include "daemon/control/rendezvous.h"
#include "daemon/control/snapshots.h"
#include "daemon/core/ids.h"
#include "daemon/core/rank_holder.h"
#include "daemon/core/shared_list.h"

namespace epd {

// Names one Join in the whole cluster.
struct ClaimKey {
  NodeId node;
  Incarnation incarnation;
  SessionId session;
  RequestId request;

  friend auto operator<=>(const ClaimKey&, const ClaimKey&) = default;
};

struct KnownClaim {
  Claim claim;  // As last reported.
  uint64_t arrival = 0;
  absl::Time first_seen;
  absl::Time deadline;  // By this coordinator's clock.
  ClaimDisposition disposition = ClaimDisposition::kWaiting;
  GroupId group;        // When granted.
  absl::Status status;  // Why it waits or has failed.
  Formation since;      // First formation it takes part in; zero: none yet.
  bool served = false;  // Has been in a READY formation: its Join is answered.
};

struct KnownOrder {
  Order order;
  absl::Time deadline;
  bool done = false;
  absl::Status status;
  GroupId group;               // The first tenant's.
  std::set<GroupId> draining;  // Tenants that it still waits for.
  std::set<GroupId> changed;   // Tenants that it made or ended.
};

struct KnownNode {
  Incarnation incarnation;
  NodeLink link;
  uint64_t last_seq = 0;
  uint64_t taken_seq = 0;  // Of the last report that was not only kept.
  absl::Time last_seen;
  bool lost = false;
  std::map<WorkerName, WorkerReport> workers;
  NodeFacts facts;
  std::map<std::pair<SessionId, RequestId>, KnownClaim> claims;
  std::map<std::pair<GroupId, WorkerName>, GroupWork> work;
  std::map<RequestId, KnownOrder> orders;
};

// The run of a worker that serves ranks in an epoch.
struct WorkerRun {
  Incarnation node;
  Incarnation worker;  // Zero: not up yet.

  friend bool operator==(const WorkerRun&, const WorkerRun&) = default;
};

// What all tenants of a group share: which worker serves each rank in which epoch, and the
// communicator between those workers. It lives as long as any tenant of the group's name.
struct ClusterCommunicator {
  GroupId id;  // Names it to the workers.
  Epoch epoch;
  bool stale = false;  // A worker or node of the epoch is lost.
  std::map<Rank, WorkerId> places;
  std::map<WorkerId, WorkerRun> workers;  // The communicator's members.
  absl::Status over;                      // Why the epoch before this one is over.
  bool id_known = false;
  bool initialised = false;  // Every node has; the id is forgotten.
  UniqueId unique_id;
  std::string no_id_reason;
  std::string id_digest;  // Hex SHA-256, or "none: ...".

  std::vector<WorkerName> WorkersOn(const NodeId& node) const;
  // Several workers, all of one node: nobody else needs the unique id.
  bool IdStays() const;
};

// What the holders of a group's ranks imply and is asked for in every step of a large group.
struct DerivedFromHolders {
  SharedList<RankHolder> members;  // By rank.
  std::set<WorkerId> workers;
  Epoch fits;  // The holders have been compared with this epoch, and can be in it; zero: with none.
};

// One tenant of a group. Everything but the epoch and the communicator is its own: states, sessions,
// formations, instance, deadlines; nothing that one tenant does throws another back.
struct ClusterGroup {
  GroupId id;
  GroupSpec spec;
  bool orchestrated = false;
  GroupState state = GroupState::kForming;
  absl::Time since;
  absl::Time deadline =
      absl::InfiniteFuture();  // Of RE_FORMING and DRAINING; forming has its claims' deadlines.
  absl::Status cause;
  std::map<Rank, ClaimKey> holders;
  std::optional<DerivedFromHolders> derived;  // While it is up to date.
  std::map<Rank, RankHolder> dead;
  std::map<Rank, absl::Time> left_at;  // Of `dead`.
  bool no_replacement = false;         // A rank has left by itself: the group ends when all have.

  Epoch epoch;  // Of the communicator, in which this tenant is or last was.

  // The formation.
  Formation formation;
  bool started = false;
  std::vector<ExecutionBase> bases;
  absl::Status base_cause;
  // After a formation that its nodes could not go on with: no other one before `again_at`. `rest` is
  // how long it was, and grows while they break soon.
  absl::Time again_at = absl::InfinitePast();
  absl::Duration rest;
  bool inherited = false;  // A predecessor of this coordinator formed it.
  bool adoptable = false;  // No node has been told of it yet.
  bool recovered =
      false;  // ... and it has not started since: bases are those that the members report.
  std::map<ClaimKey, DrainRecord> cut_used;
};

}  // namespace epd
