// Every field of a request, checked: a request is client memory and may hold anything.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "daemon/core/ids.h"
#include "daemon/worker/engine/tenant.h"
#include "daemon/worker/staging/eager_area.h"
#include "proto/epd/v1/segment.h"

namespace epd {

// Whether the request may speak for its rank in `tenant`. Errors go to the caller alone.
//   ABORTED            the epoch or the formation is not the tenant's; both values are named
//   PERMISSION_DENIED  the rank is not the session's
//   INVALID_ARGUMENT   the rank is out of range, or a flag is not 0 or 1
absl::Status CheckPlace(const shm::SlotRequest& request, SessionId session, const Tenant& tenant);

// The error that the rank reports about its own input or its own stage, OK when it reports none.
//   INVALID_ARGUMENT  the code is no status code
//   else              the client's own error
absl::Status CheckOwnError(const shm::SlotRequest& request);

// Whether the announce makes sense as an operation of the tenant, the error that its client reports
// with it included. Errors fail the operation on every rank.
//   INVALID_ARGUMENT    names the field, what was got and what is allowed
//   RESOURCE_EXHAUSTED  more staging than an arena can ever hold
//   else                the client's own error
absl::Status CheckAnnounce(const shm::SlotRequest& request, const Tenant& tenant,
                           uint64_t max_region_bytes);

// The error that a publish carries: the rank's own, or, where it moves its own rows on a device, what
// its kernels report.
//   INVALID_ARGUMENT  the plan is of another group, rank, call or prepare
//   ABORTED           ... of another epoch
//   DATA_LOSS         the plan is damaged
absl::Status CheckPublish(const shm::SlotRequest& request, const Part& part, const Tenant& tenant);
// What the publish of a prepare says of the rank's routes where the ranks exchange their counts on a device; of others nothing.
std::vector<uint16_t> RouteCountsOf(const shm::SlotRequest& request, const Part& part,
                                    const Tenant& tenant);

// Whether the rows of a sound announce can stand in the eager buffer in which they are said to.
//   INVALID_ARGUMENT  names the field, what was got and what is allowed
absl::Status CheckEagerBuffer(const shm::SlotRequest& request, const EagerArea& eager,
                              const EagerOptions& options);

}  // namespace epd
