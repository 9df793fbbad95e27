// The coordinator's records of a group: its tenants, and the communicator that they share.
#pragma once

#include "daemon/control/rendezvous/claim_table.h"
#include "daemon/control/rendezvous/node_table.h"

namespace epd {

// What all tenants of a group share: which worker serves each rank in which epoch, and the
// communicator between those workers. It lives as long as any tenant of the group's name.
struct ClusterCommunicator {
  GroupId id;  // Names it to the workers.
  Epoch epoch;
  bool stale = false;  // A worker or node of the epoch is lost.
  std::map<Rank, WorkerId> worker_of;
  std::map<WorkerId, WorkerRun> workers;  // The communicator's members.
  absl::Status over;                      // Why the epoch before this one is over.
  bool id_known = false;
  bool initialised = false;  // Every node has; the id is forgotten.
  UniqueId unique_id;
  std::string no_id_reason;
  std::string id_digest;  // Hex SHA-256, or "none: ...".

  std::vector<WorkerName> WorkersOn(const NodeId& node) const;
  void Clear();  // All but the id.
  // Several workers, all of one node: nobody else needs the unique id.
  bool IdStays() const;
};

// What the holders of a group's ranks imply and is asked for in every step of a large group.
struct DerivedFromHolders {
  SharedList<RankHolder> members;  // By rank.
  std::set<WorkerId> workers;
  Epoch fits;  // The holders have been compared with this epoch, and can be in it; zero: with none.
};

struct FormerHolder {
  RankHolder who;
  absl::Time left_at;
};

// Who has a group's ranks.
struct GroupRanks {
  std::map<Rank, ClaimKey> holders;
  std::optional<DerivedFromHolders> derived;  // While it is up to date.
  std::map<Rank, FormerHolder> dead;
  bool no_replacement = false;  // A rank has left by itself: the group ends when all have.

  std::set<ClaimKey> members() const;
};

// Where a formation's executions begin to count.
struct FormationCut {
  std::vector<ExecutionBase> bases;
  absl::Status cause;  // Why executions below the bases fail.
  // What the bases were made from: the members that were told of an earlier formation, and its bases.
  std::map<ClaimKey, DrainRecord> drained;
  std::vector<ExecutionBase> before;
};

// After a formation that its nodes could not go on with: no other one before `until`. `length` is
// how long it was, and grows while they break soon.
struct FormationRest {
  absl::Time until = absl::InfinitePast();
  absl::Duration length;
};

// What a group has from a predecessor of this coordinator.
struct GroupInheritance {
  bool formed = false;     // The predecessor formed it.
  bool adoptable = false;  // No node has been told of it yet.
  bool recovered = false;  // It has not started since: bases are those that the members report.
};

// One tenant of a group. Everything but the epoch and the communicator is its own: states, sessions,
// formations, instance, deadlines; nothing that one tenant does throws another back.
struct ClusterGroup : GroupFacts {
  bool orchestrated = false;
  absl::Time since;
  // Of RE_FORMING and DRAINING; forming has its claims' deadlines.
  absl::Time deadline = absl::InfiniteFuture();
  GroupRanks ranks;
  bool started = false;  // The formation.
  FormationCut cut;
  FormationRest rest;
  GroupInheritance inherited;

  bool complete() const { return ranks.holders.size() == spec.num_ranks; }
  std::vector<Rank> missing() const;       // That nobody holds.
  std::vector<RankHolder> former() const;  // Last holders of missing ranks.
};

// "group=moe tenant=b epoch=3", as messages begin.
std::string Label(const ClusterGroup& group);

}  // namespace epd
