// All that a node's control knows, as one value: what an epd hands to the program that replaces it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/control/membership_state.h"
#include "daemon/control/node/session_membership.h"
#include "daemon/control/node_events.h"
#include "daemon/control/snapshots.h"
#include "daemon/control/used_ids.h"
#include "daemon/core/ids.h"
#include "daemon/core/worker_name.h"

namespace epd {

struct AttachedSession {
  SessionAttached client;
  SessionState state = SessionState::kAttached;
};

struct LocalWorker {
  WorkerReport report;
  WorkerState state = WorkerState::kDown;
};

// What has passed between the node and its coordinator.
struct LinkState {
  Incarnation followed;
  Incarnation reported_to;  // The last that has taken a report.
  uint64_t last_view_seq = 0;
  Epoch max_epoch;
  Formation max_formation;
  uint64_t report_seq = 0;
};

// What the tenants of a group share on this node; lives as long as one of them is known.
struct LocalCommunicator {
  // A worker of this node in it.
  struct Member {
    GroupWork work;
    Epoch id_asked;    // MakeUniqueId was sent for it.
    Epoch init_asked;  // InitCommunicator was sent for it.
  };

  std::map<WorkerName, Member> members;
  bool id_stays = false;
  Epoch id_checked;  // Whether its id may be used is `id_is_fresh`.
  bool id_is_fresh = false;
  std::string no_id_reason;
};

// What a worker of this node does for a tenant of a group.
struct LocalTenant {
  GroupWork work;
  bool running = false;  // The worker has the tenant of work.formation.
  bool drain_asked = false;
};

struct LocalGroup {
  GroupView view;          // With what a coordinator that repeats nothing has said before.
  Incarnation heard_from;  // The coordinator that has told members, bases and workers.
  absl::Time since;
  std::map<WorkerName, LocalTenant> tenants;  // Of the workers that serve it here.
  Formation ended;   // All formations up to it are over on this node, whatever the view says.
  Formation served;  // The last one that was served here.
  // Why the group's last formation that was READY, `cause_of`, is over; what follows from that does not hide it, and what
  // ended another one does not stand for it.
  absl::Status first_cause;
  Formation cause_of;
  Formation troubled;    // The last in which calls on this node fail: it has ended, or is broken.
  absl::Status trouble;  // The first reason for that.
};

// But for operators' orders: whoever waits for an answer asks again.
struct NodeState {
  LinkState link;
  std::map<WorkerName, LocalWorker> workers;
  std::map<SessionId, AttachedSession> sessions;
  Memberships memberships;
  std::map<GroupId, LocalCommunicator> communicators;
  UsedIds used_ids;
  std::map<GroupId, LocalGroup> groups;
};

}  // namespace epd
