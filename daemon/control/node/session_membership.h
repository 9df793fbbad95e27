// One Join of one session.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "daemon/control/membership_state.h"
#include "daemon/control/snapshots.h"

namespace epd {

// A Join from its request until the coordinator has seen its release.
struct SessionMembership {
  Claim claim;
  uint32_t uid = 0;  // Of the session.
  MembershipState state = MembershipState::kWaiting;
  absl::Time deadline;  // Of the Join, or of a re-formation that the session was told to wait for.
  absl::Status waits_for;
  Formation drained_of;       // The formation that the session named in its last Drained.
  bool told_to_wait = false;  // In the last NotifyReform.
  uint64_t released_seq = 0;  // First report that says so.

  bool held() const { return state != MembershipState::kReleased; }
};

using Memberships = std::map<std::pair<SessionId, RequestId>, SessionMembership>;

// "rank=2 host=a7 pid=4711 phase=gone; rank=3 ..."
std::string DescribeRanksOf(const Claim& claim, const std::string& phase);

// Puts the higher of each count, of the claim's own ranks, into `record`, whose counts are sorted. Takes n log n.
//   RESOURCE_EXHAUSTED  these are more than kMaxExecutionBases
absl::Status Merge(const std::vector<ExecutionCount>& counts, const Claim& claim,
                   DrainRecord& record);

}  // namespace epd
