// Groups whose rows a library moves: what it is told, and which ones it cannot serve.
#pragma once

#include "absl/status/status.h"
#include "daemon/backend/member_moves.h"
#include "daemon/worker/engine/tenant_start.h"

namespace epd {

// Of backend=nccl_ep; the spec is within its limits (daemon/core/nccl_ep_limits.h).
LibraryGroup LibraryGroupOf(const GroupSpec& spec);

// The refusal of a group of which a worker has more than one rank.
absl::Status SeveralRanksOnOneGpu(const TenantStart& start);

}  // namespace epd
