// Between worker.proto and the engine's values.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/backend/backend.h"
#include "daemon/codec/codec.h"
#include "daemon/worker/engine/engine_limits.h"
#include "daemon/worker/engine/exchange_snapshot.h"
#include "daemon/worker/engine/operation_traces.h"
#include "daemon/worker/engine/tenant_start.h"
#include "proto/epd/v1/worker.pb.h"

namespace epd {

EngineLimits LimitsFromProto(const v1::WorkerHello::Limits& message);

//   INVALID_ARGUMENT  a program digest is not 16 bytes, or the dtype or executor is unknown
absl::StatusOr<TenantStart> TenantStartFromProto(const v1::StartTenant& message);

// All but the descriptor, which goes beside it.
v1::NeighbourMessage NeighbourToProto(const NeighbourMessage& message);
//   INVALID_ARGUMENT  neither a greeting nor an arena, or without the descriptor that belongs to it
absl::StatusOr<NeighbourMessage> NeighbourFromProto(const v1::NeighbourMessage& message,
                                                    std::vector<UniqueFd> fds);

// Tells of the arenas of `ranks`, one each in their order; `fds`: what goes with them, as TenantReady says.
//   RESOURCE_EXHAUSTED  no descriptor for one
absl::Status PutArenas(ArenaSet& set, const std::vector<Rank>& ranks, v1::TenantReady& ready,
                       std::vector<int>& fds);

// Operations of the past in one message: the longest line has less than 187 bytes.
inline constexpr size_t kMaxPastShown = 1400;
// Figures per expert in one snapshot.
inline constexpr size_t kMaxRoutesShown = 16384;

// Everything but the request id.
// Parts of operations in one message, those that have ended and those that have not: each has less than 400 bytes.
inline constexpr size_t kMaxTracesShown = 400;
inline constexpr size_t kMaxOpenShown = 200;
v1::TracePage TraceToProto(const OperationTraces::Page& page);

v1::WorkerPast PastToProto(const std::vector<ExchangeSnapshot::PastLine>& lines);
// Everything but the request id and the routes per expert; of the operations the oldest ones.
v1::WorkerSnapshot SnapshotToProto(const ExchangeSnapshot& snapshot);
// The messages that tell it, each of which fits into a datagram; at most kMaxRoutesShown routes.
std::vector<v1::FromWorker> SplitSnapshot(v1::WorkerSnapshot whole);

}  // namespace epd
