// One Join of one session.
#pragma once

#include <map>
#include <utility>

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

}  // namespace epd
