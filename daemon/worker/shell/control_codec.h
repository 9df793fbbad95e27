// Between worker.proto and the engine's values.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/backend/backend.h"
#include "daemon/codec/codec.h"
#include "daemon/worker/engine/exchange_snapshot.h"
#include "daemon/worker/engine/tenant_start.h"
#include "proto/epd/v1/worker.pb.h"

namespace epd {

//   INVALID_ARGUMENT  a program digest is not 16 bytes, or the dtype or executor is unknown
absl::StatusOr<TenantStart> TenantStartFromProto(const v1::StartTenant& message);

// Everything but the rank.
void ShareToProto(const ArenaShare& share, v1::TenantReady::Arena& arena);

// Everything but the request id and the routes per expert. At most as many operations as fit into a
// message; the oldest first.
v1::WorkerPast PastToProto(const std::vector<ExchangeSnapshot::PastLine>& lines);
v1::WorkerSnapshot SnapshotToProto(const ExchangeSnapshot& snapshot);

}  // namespace epd
