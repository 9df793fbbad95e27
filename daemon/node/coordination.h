// Who coordinates the cluster: this node with its own Rendezvous, or another epd at the end of a
// link.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/control/rendezvous.h"
#include "daemon/node/cluster_ports.h"
#include "daemon/node/loop/event_sink.h"
#include "daemon/node/loop/thread_role.h"

namespace epd {

// How a node begins to coordinate.
struct Leading {
  Epoch floor;                // Epochs begin above it.
  std::set<NodeId> expected;  // The other living nodes.
  // Epochs from here on are not to be used up: `resign` is called, once.
  Epoch resign_at{UINT64_MAX};
  std::function<void()> resign;
  std::vector<PersistentGroup> persistent = {};  // What operators made earlier.
  // Called when that has changed, with all of it; Rendezvous::SetKept says that it is kept.
  std::function<void(const std::vector<PersistentGroup>&)> keep = nullptr;
};

// What a store says of who coordinates, and of this node's own lease there.
struct StoreLease {
  std::string holder;  // The node that coordinates; empty: nobody.
  int64_t term = 0;    // Grows with each election.
  // ClockNow() when this node takes its lease for over.
  absl::Time until = absl::InfinitePast();
};

// Control thread.
class Coordination {
 public:
  struct Options {
    NodeId self;
    Incarnation incarnation;
    std::string coordinator;      // The setting; "" where this node coordinates.
    absl::Duration node_silence;  // Infinite where no other node can be lost.
    absl::Duration start_grace;
  };
  // Where its parts of the world are; all outlive this.
  struct Ports {
    EventSink control;
    std::function<void(const RendezvousEffect&)> perform;
    std::function<void()> changed;  // Own state may have changed.
  };

  Coordination(Options options, const ThreadRole& role, Ports ports);

  // `link`: to the epd of --coordinator, else null. `streams`: to other nodes when this epd
  // listens, else null.
  void Connect(CoordinatorLink* link, ClusterStreams* streams);
  // What Ask() uses while this node coordinates, also when it does not listen.
  void SetAsking(ClusterStreams& streams) { asking_ = &streams; }
  // Before Start(), where another program of this process coordinated: goes on with the groups that the nodes report,
  // once `how.expected` have, or soon.
  void Continue(const Leading& how);
  // Introduces this node to its own coordinator where it has one.
  void Start();

  // Runs one call of this epd's own coordinator, and its effects.
  using Change = std::function<Rendezvous::Effects(Rendezvous&, absl::Time)>;
  void Call(const Change& call);

  // Where control's report and the own coordinator's views go.
  void Report(const NodeReport& report);
  void Show(const ClusterView& view);

  // The link's work. TickOwn: the own coordinator's; after control has had its turn.
  void TickLink(absl::Time now);
  void TickOwn(absl::Time now);
  absl::Time NextDeadline() const;

  // Asks every node of the cluster, through whoever coordinates.
  void Ask(const v1::AskNodesRequest& request, OnAsked done);

  // Of the coordinator's clock, as CoordinatorLink says; unset where this node coordinates.
  std::optional<v1::ClockOffset> CompareClocks() {
    return link_ == nullptr ? std::nullopt : link_->CompareClocks();
  }

  // ---- with --rendezvous: who coordinates changes ----
  // This node coordinates from now on, with a coordinator that knows nothing yet.
  void Lead(const Leading& how);
  // This node coordinates no more; reports go to `link`.
  void StopLeading(CoordinatorLink& link, const absl::Status& why);
  // Operators are told who coordinates, or why nobody does, and what is wrong with the store, or "".
  void SetLeader(std::string leader, std::string why_none);
  void SetStoreProblem(std::string problem) { store_problem_ = std::move(problem); }

  // `read` is called on the control thread, for as long as this lives.
  void SetStoreLease(std::function<StoreLease()> read) { read_store_lease_ = std::move(read); }

  // Unset: there is no store.
  std::optional<StoreLease> store_lease() const {
    return read_store_lease_ ? std::optional(read_store_lease_()) : std::nullopt;
  }
  const Rendezvous& rendezvous() const { return *rendezvous_; }
  bool is_here() const { return link_ == nullptr; }
  const std::string& leader() const { return leader_; }
  const std::string& why_no_leader() const { return why_no_leader_; }
  const std::string& store_problem() const { return store_problem_; }

 private:
  RendezvousOptions OwnOptions() const;
  RendezvousOptions OwnOptions(const Leading& how) const;
  void KeepPersistent() ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);

  const Options options_;
  const ThreadRole& role_;
  const Ports ports_;
  std::unique_ptr<Rendezvous> rendezvous_;
  Leading leading_ ABSL_GUARDED_BY(role_);
  std::string leader_;
  std::string why_no_leader_;
  std::string store_problem_;
  std::function<StoreLease()> read_store_lease_;
  CoordinatorLink* link_ = nullptr;
  ClusterStreams* streams_ = nullptr;
  ClusterStreams* asking_ = nullptr;
};

}  // namespace epd
