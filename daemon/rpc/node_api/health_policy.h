// Whether a node and its groups serve: pure, from what is known of them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/control/group_state.h"
#include "proto/epd/v1/node.pb.h"

namespace epd {

struct HealthFacts {
  struct Worker {
    std::string name = {};  // "the worker", "the worker of cuda:0".
    bool on_gpu = false;
    int pid = 0;
    bool running = false;
    bool silent = false;         // It counts as not serving.
    std::string waits_for = {};  // "memory of uid=1001", where that is known.
    absl::Duration unanswered = absl::ZeroDuration();
    absl::Duration down = absl::ZeroDuration();
    std::string last_exit = {};
    uint32_t num_restarts = 0;
  };
  // One tenant.
  struct Group {
    std::string name = {};
    std::string tenant = {};
    GroupState state = GroupState::kForming;
    absl::Status cause = {};
    bool stalled = false;  // A worker of this node that serves it is silent.
  };
  bool stopping = false;
  absl::Duration worker_stuck;
  std::vector<Worker> workers;
  std::string no_coordinator;  // Why there is none; empty: there is one.
  std::string store_problem;
  std::string certificate_problem;  // Of this node's own.
  std::string socket_problem;       // Why new clients do not reach it.
  std::vector<Group> groups;
};

struct NodeHealth {
  v1::Health health = v1::HEALTH_OK;
  std::vector<std::string> problems;  // Empty when OK.
};

// A question to a worker that is open for longer than a status waits for it.
inline constexpr absl::Duration kStaleAfter = absl::Milliseconds(250);

// A node without the CPU's worker is UNHEALTHY; one that has lost a group, a GPU's worker or its coordinator is DEGRADED,
// for the rest of it goes on.
NodeHealth Judge(const HealthFacts& facts);

// What grpc.health.v1 says, by service: "" and "epd.v1.Node" of the node, which serves unless it is UNHEALTHY;
// "epd.group/NAME/TENANT" of a tenant; "epd.group/NAME" of the tenant without a name, or, where there is none, whether
// any tenant is served.
std::map<std::string, bool> ServingByService(const HealthFacts& facts);

}  // namespace epd
