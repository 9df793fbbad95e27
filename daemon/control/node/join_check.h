// Whether a Join makes sense, by itself and beside the others of its session.
#pragma once

#include <vector>

#include "daemon/control/node/local_workers.h"
#include "daemon/control/node/session_membership.h"

namespace epd {

//   INVALID_ARGUMENT     it names no rank, a rank twice or beyond the group's, or no deadline
//   FAILED_PRECONDITION  the node has not got a worker that it names
//   INTERNAL             its workers do not fit its ranks
absl::Status CheckJoin(const JoinRequested& event, const LocalWorkers& workers);

// `held`: what its session holds or waits for.
//   INVALID_ARGUMENT    its request id is one of theirs
//   ALREADY_EXISTS      one is of a group of this name
//   RESOURCE_EXHAUSTED  so many wait that it must not ask for more
absl::Status CheckSession(const JoinRequested& event, const std::vector<SessionMembership*>& held);

}  // namespace epd
