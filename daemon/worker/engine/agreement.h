// What must be equal on all ranks of an operation, and who is the odd one out.
#pragma once

#include "absl/status/status.h"
#include "daemon/worker/engine/operation.h"
#include "daemon/worker/engine/tenant.h"

namespace epd {

// Compares the fingerprints of an operation that every rank has announced.
//   INVALID_ARGUMENT  a field differs: the value of most ranks, and each other value with its
//   ranks.
//                     Without a majority every value is named alike.
absl::Status CheckAgreement(const Operation& operation, const Tenant& tenant);

// Compares each rank's demand with its receive capacity, unless the group drops.
//   RESOURCE_EXHAUSTED  names rank, host, pid, demand and capacity of the worst rank, and how many others.
absl::Status CheckOverflow(const Operation& operation, const Tenant& tenant);

}  // namespace epd
