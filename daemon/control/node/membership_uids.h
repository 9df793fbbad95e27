// Whose the Joins of a node are.
#pragma once

#include <map>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "daemon/control/node/session_membership.h"
#include "daemon/control/node_events.h"

namespace epd {

// Whether a session of `uid` may join.
//   PERMISSION_DENIED   sessions of another uid are this tenant here
//   RESOURCE_EXHAUSTED  as CheckShare
absl::Status CheckUid(const Memberships& all, const JoinRequested& event, uint32_t uid);

// What each uid has of groups, ranks and tables.
std::map<uint32_t, UidUse> UsesOf(const Memberships& all);
// Of held ones.
std::set<std::string> GroupNames(const Memberships& all);

}  // namespace epd
