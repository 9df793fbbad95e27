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

// `start` has a rank of this worker. Near are the members of its node.
//   FAILED_PRECONDITION  a rank's worker has no run in this epoch
absl::StatusOr<Membership> MembershipOf(const TenantStart& start);

}  // namespace epd
