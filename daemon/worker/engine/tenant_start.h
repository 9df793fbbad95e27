// What epd says when it starts a tenant.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "daemon/core/execution.h"
#include "daemon/core/group_spec.h"
#include "daemon/core/ids.h"
#include "daemon/core/rank_holder.h"
#include "daemon/worker/engine/peer_message.h"

namespace epd {

struct TenantStart {
  GroupId group;
  Epoch epoch;
  Formation formation;
  GroupSpec spec;                   // Every default filled in.
  std::vector<RankHolder> members;  // [num_ranks], by rank; session 0: another worker serves it.
  std::vector<ExecutionBase> bases;
  absl::Status base_cause;
  std::vector<PeerWorker> nodes = {};  // The workers that serve the group.
  GroupId communicator = {};           // Of all tenants of the group.
  bool landing_arenas = false;         // One for all ranks of another worker, not one for each.

  // Its arenas are device memory.
  bool on_device() const { return spec.on_device(); }
};

}  // namespace epd
