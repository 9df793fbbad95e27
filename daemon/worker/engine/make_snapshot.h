// Makes what the engine shows to people out of its parts.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/time/time.h"
#include "daemon/worker/engine/exchange_snapshot.h"
#include "daemon/worker/engine/operation_table.h"
#include "daemon/worker/engine/tenant_table.h"
#include "daemon/worker/staging/staging.h"

namespace epd {

ExchangeSnapshot MakeSnapshot(const OperationTable& table, const TenantTable& tenants,
                              const Staging& staging, absl::Time now);

// The last operations of the tenant's ranks on this node, by rank, the newest first: `max_of_rank` of each, or as many
// of each as make `max_lines` in all.
std::vector<ExchangeSnapshot::PastLine> ListPast(const Tenant& tenant, const OperationTable& table,
                                                 size_t max_of_rank, size_t max_lines,
                                                 absl::Time now);

}  // namespace epd
