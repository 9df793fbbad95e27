// Whether a Join makes sense by itself.
#pragma once

#include "daemon/control/node/local_workers.h"

namespace epd {

//   INVALID_ARGUMENT     it names no rank, a rank twice or beyond the group's, or no deadline
//   FAILED_PRECONDITION  the node has not got a worker that it names
//   INTERNAL             its workers do not fit its ranks
absl::Status CheckJoin(const JoinRequested& event, const LocalWorkers& workers);

}  // namespace epd
