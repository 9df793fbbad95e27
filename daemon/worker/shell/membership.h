// A worker's place in the communicator of a group whose ranks are on several devices.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "daemon/backend/member_moves.h"
#include "daemon/worker/engine/tenant_start.h"

namespace epd {

struct Membership {
  CommunicatorMember in;
  std::vector<int> member_of_rank;  // [num_ranks]; members stand in the order of their first ranks.
};

// `start` has a rank of this worker. A member is near that is of this node and greets, as this worker knows from epd: in a group
// over several nodes a worker of an earlier release does not, and no worker does for an epd of one.
//   FAILED_PRECONDITION  a rank's worker has no run in this epoch
absl::StatusOr<Membership> MembershipOf(const TenantStart& start);

}  // namespace epd
