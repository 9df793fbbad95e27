// The coordinator: forms groups across nodes. Snapshots of nodes in, snapshots for nodes out.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "daemon/control/formation_errors.h"
#include "daemon/control/group_state.h"
#include "daemon/control/snapshots.h"
#include "daemon/core/ids.h"

namespace epd {

// ---- effects ----

// Hand `view` to its node; a lost one is made good by the next report of that node.
struct SendView {
  ClusterView view;
};

using RendezvousEffect = std::variant<SendView, GroupTransition>;

// A group that an operator has made: it lives without leases until it is closed.
struct PersistentGroup {
  GroupId id;
  GroupSpec spec;

  friend bool operator==(const PersistentGroup&, const PersistentGroup&) = default;
};

struct RendezvousOptions {
  Incarnation incarnation;  // Random, this run of the coordinator.
  // A node that is silent for longer is lost, and its sessions with it. Infinite for a node of the
  // same process.
  absl::Duration node_silence = absl::Seconds(10);
  // After its start a coordinator of several nodes only listens for this long, so that it hears of
  // the epochs and members of groups that its predecessor formed before it forms any. Zero when
  // there is one node.
  absl::Duration start_grace = absl::ZeroDuration();
  // When all of these have reported, the grace ends early; empty: it does not.
  std::set<NodeId> expected;
  Epoch floor;  // Epochs begin above it.
  absl::Time started_at;
  // What operators made before this coordinator's time. There again once the grace is over; those
  // that the nodes serve go on as they are.
  std::vector<PersistentGroup> persistent = {};
  // Somebody keeps what operators make and says so with SetKept: only then are they answered.
  bool keeps_persistent = false;
};

// What the edge knows about the way to a node.
struct NodeLink {
  std::string no_ids;  // Why unique ids may not travel on it; empty: they may.
};

// ---- status ----

// One tenant of a group.
struct GroupStatus : GroupFacts {
  GroupId communicator;          // Equal for all tenants of the group.
  bool orchestrated = false;     // Created by hand: lives without leases until closed.
  absl::Time since;              // Of `state`.
  std::vector<RankPhase> ranks;  // Held ones, by rank.
  std::vector<Rank> missing;
  std::vector<RankHolder> dead;  // Last holders of missing ranks.
  // SHA-256 (hex) of the unique id, as the workers report it, or "none: <reason>".
  std::string id_digest;
};

struct GroupSummary {
  std::string name;
  std::string tenant;
  GroupState state = GroupState::kForming;
};

struct NodeStatus {
  NodeId node;
  absl::Time last_report;
  bool lost = false;
};

// Pure: every result is a function of the arguments so far. Not thread-safe; the control thread
// owns it. Rules are in the header of group_state.h (states), DESIGN 4 (epochs, cut-off) and
// formation_errors.h (texts).
class Rendezvous {
 public:
  using Effects = std::vector<RendezvousEffect>;

  explicit Rendezvous(const RendezvousOptions& options);
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  // A node's stream has opened. Whatever its earlier incarnations held is dead. Answers with a
  // view, from which the node learns this coordinator's incarnation. Reports of other incarnations
  // of the node are ignored from here on.
  Effects ConnectNode(absl::Time now, const NodeId& node, Incarnation incarnation,
                      const NodeLink& link = {});

  // Always answers a current report with a view; ignores one whose incarnation is not the connected
  // one or whose seq is not above the last.
  Effects TakeReport(absl::Time now, const NodeReport& report);
  // As one after the other, with what follows from all of them together: thousands of nodes that
  // report at once cost little more than one, and each gets one view.
  Effects TakeReports(absl::Time now, absl::Span<const NodeReport> reports);

  // The node is known to be dead (not merely disconnected): its sessions are dead too. `cause` says
  // why.
  Effects LoseNode(absl::Time now, const NodeId& node, const absl::Status& cause);

  // The next coordinator would hear of exactly these, see Persistent().
  Effects SetKept(absl::Time now, const std::vector<PersistentGroup>& kept);
  // Somebody would keep them, and the store refuses, because of `why`: orders that wait for it are answered so.
  Effects RefuseToKeep(absl::Time now, const absl::Status& why);

  // Runs what is due. Call at NextDeadline(); more often does no harm.
  Effects Tick(absl::Time now);

  // When to call Tick; InfiniteFuture when nothing waits.
  absl::Time NextDeadline() const;

  Incarnation incarnation() const;
  std::vector<GroupStatus> Groups() const;  // By name, then tenant; living ones only.
  // The same without the ranks, of which there may be thousands.
  std::vector<GroupSummary> Summaries() const;
  std::vector<NodeStatus> Nodes() const;  // By name.
  // What operators have made and not closed, by name and tenant: for the next coordinator.
  std::vector<PersistentGroup> Persistent() const;
  // The last formation of this name that was late; null: none that is remembered.
  const FormationReport* LastReport(const std::string& name) const;
  // Highest epoch that this coordinator has given out.
  Epoch max_epoch() const;
  // What waits although no deadline bounds it, in words; always empty unless there is a bug.
  std::vector<std::string> WaitsWithoutEnd() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace epd
