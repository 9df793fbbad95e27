// One node's control state: sessions, leases, local groups, waiting requests, workers' lives.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "daemon/control/membership_state.h"
#include "daemon/control/node_effects.h"
#include "daemon/control/node_events.h"
#include "daemon/control/snapshots.h"
#include "daemon/control/uid_limits.h"
#include "daemon/core/ids.h"
#include "daemon/core/worker_name.h"

namespace epd {

struct NodeState;  // daemon/control/node_state.h

struct NodeOptions {
  NodeId node;
  Incarnation incarnation;                      // Random, this run of epd.
  NodeFacts facts = {};                         // Without NCCL's version, which the worker says.
  std::set<WorkerName> workers = {kCpuWorker};  // At first; see WorkerAdded.
  // How often the report is repeated although nothing has changed; infinite when the coordinator is
  // in this process.
  absl::Duration report_interval = absl::Seconds(1);
  // How long after its deadline a request is still given to the coordinator, whose errors have
  // complete lists.
  absl::Duration coordinator_grace = absl::Seconds(2);
};

// ---- status ----

// What a session holds of a group, or asks for.
struct MembershipStatus {
  SessionId session;
  MembershipState state = MembershipState::kWaiting;
  std::string group_name;
  GroupId group;  // Zero: not granted yet.
};

// A group as this node sees it.
struct LocalGroupStatus {
  GroupView view;
  absl::Time since;  // Of `view.state`, or of `trouble`.
  // Not OK: the coordinator calls it READY, but calls on this node fail, and it is yet to hear of that.
  absl::Status trouble;
  TenantPhase tenant = TenantPhase::kNone;  // Of the worker that is least far.
  Formation tenant_formation;
  std::vector<WorkerName> workers;  // That serve it here, by name.
  std::string id_digest;  // SHA-256 (hex) that this node's workers reported, or "none: <reason>";
                          // empty before.
};

// Pure: every result is a function of the events so far. Not thread-safe; the control thread owns
// it.
//
// Use: for every event, `for (const NodeEffect& e : control.Handle(now, event)) Run(e);`, and a
// Tick at NextDeadline(). Effects must be carried out in order. A node without a remote coordinator
// owns a Rendezvous too and hands SendReport to it and SendView back.
class NodeControl {
 public:
  using Effects = std::vector<NodeEffect>;

  explicit NodeControl(const NodeOptions& options);
  ~NodeControl();
  NodeControl(const NodeControl&) = delete;
  NodeControl& operator=(const NodeControl&) = delete;

  Effects Handle(absl::Time now, const NodeEvent& event);
  // The two halves of Handle(): several events may have one report, soon after them.
  Effects Take(absl::Time now, const NodeEvent& event);
  Effects Report(absl::Time now);

  // When to hand in a Tick; InfiniteFuture when nothing waits.
  absl::Time NextDeadline() const;

  const NodeOptions& options() const { return options_; }
  // By session, then request. Released ones are left out.
  std::vector<MembershipStatus> Memberships() const;
  std::vector<LocalGroupStatus> Groups() const;  // By name, tenant, id.
  // What the coordinator last said of it; null: it is not known here.
  const GroupView* FindGroup(GroupId group) const;
  // Whether a process that lives on after its session's end may still write staging. It may not if the session has left all its
  // groups: a client unmaps their staging when it leaves.
  bool HoldsStaging(SessionId session) const;
  // What the sessions of each uid have, but for the sessions themselves.
  std::map<uint32_t, UidUse> Uses() const;
  bool coordinator_connected() const;
  Incarnation coordinator() const;
  // What an earlier NodeControl of the same incarnation knew, and goes on from; before the first
  // event. Operators' orders are not part of it.
  NodeState State() const;
  void Restore(NodeState state);
  // What waits although no deadline bounds it, in words; always empty unless there is a bug.
  std::vector<std::string> WaitsWithoutEnd() const;

 private:
  struct Parts;
  NodeOptions options_;
  std::unique_ptr<Parts> parts_;
};

}  // namespace epd
