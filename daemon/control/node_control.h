// One node's control state: sessions, leases, local groups, waiting requests, workers' lives.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/control/membership_state.h"
#include "daemon/control/node_effects.h"
#include "daemon/control/node_events.h"
#include "daemon/control/snapshots.h"
#include "daemon/core/ids.h"
#include "daemon/core/worker_name.h"

namespace epd {

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

struct SessionStatus {
  SessionId id;
  int32_t pid = 0;
  uint32_t uid = 0;
  std::string host;
  std::string name;
  std::string version;
  SessionState state = SessionState::kAttached;
  absl::Time since;
};

// One lease: (group, tenant, ranks) -> session; or a Join that waits for one.
struct MembershipStatus {
  SessionId session;
  RequestId request;
  MembershipState state = MembershipState::kWaiting;
  std::string group_name;
  std::string tenant;
  GroupId group;  // Zero: not granted yet.
  std::vector<Rank> ranks;
  Formation joined;        // Zero: never.
  absl::Time since;        // Of `state`.
  absl::Time deadline;     // While waiting; else InfiniteFuture.
  absl::Status waits_for;  // What the coordinator says it waits for.
};

// A group as this node sees it.
struct LocalGroupStatus {
  GroupView view;
  absl::Time since;                         // Of `view.state`.
  TenantPhase tenant = TenantPhase::kNone;  // Of the worker that is least far.
  Formation tenant_formation;
  std::vector<WorkerName> workers;  // That serve it here, by name.
  std::string id_digest;  // SHA-256 (hex) that this node's workers reported, or "none: <reason>";
                          // empty before.
};

struct WorkerStatus {
  WorkerName name;
  WorkerState state = WorkerState::kDown;
  Incarnation incarnation;
  bool has_nccl = false;
  std::string nccl_problem;
  std::string nccl_version;
  std::string wire_address;
  std::string local_address;
  absl::Status last_death;
  int num_deaths = 0;
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

  // When to hand in a Tick; InfiniteFuture when nothing waits.
  absl::Time NextDeadline() const;

  const NodeOptions& options() const { return options_; }
  std::vector<SessionStatus> Sessions() const;  // By id.
  std::vector<MembershipStatus> Memberships()
      const;  // By session, then request. Released ones are left out.
  std::vector<LocalGroupStatus> Groups() const;  // By name, tenant, id.
  std::vector<WorkerStatus> Workers() const;     // By name.
  bool coordinator_connected() const;
  Incarnation coordinator() const;
  bool shutting_down() const;
  // What waits although no deadline bounds it, in words; always empty unless there is a bug.
  std::vector<std::string> WaitsWithoutEnd() const;

 private:
  class Impl;
  NodeOptions options_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace epd
