#include "daemon/worker/engine/operation_figures.h"

#include <algorithm>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/types/span.h"
#include "daemon/worker/engine/tenant.h"
#include "proto/epd/v1/operation_kind.h"

namespace epd {
namespace {

size_t BucketOf(absl::Duration spent, absl::Span<const double> bounds) {
  const auto bound = absl::c_lower_bound(bounds, absl::ToDoubleSeconds(spent));
  return static_cast<size_t>(bound - bounds.begin());
}

void CountWaits(const Operation& operation) {
  const std::vector<Part>& parts = operation.parts;
  const auto last = absl::c_max_element(
      parts, [](const Part& a, const Part& b) { return a.announced < b.announced; });
  for (uint32_t rank = 0; rank < parts.size(); ++rank) {
    operation.tenant->counters.CountWait(rank, static_cast<uint32_t>(last - parts.begin()),
                                         parts.size(), last->announced - parts[rank].announced);
  }
}

void CountDropped(const Operation& operation) {
  Tenant& tenant = *operation.tenant;
  for (uint32_t r = 0; r < operation.parts.size(); ++r) {
    const Announcement& said = operation.parts[r].said;
    if (!tenant.local(r) || !Scatters(said.kind) || said.demand <= said.recv_capacity) continue;
    tenant.counters.dropped_rows += said.demand - said.recv_capacity;
  }
}

}  // namespace

void TenantCounters::CountWait(uint32_t rank, uint32_t last, size_t num_ranks,
                               absl::Duration waited) {
  if (rank == last) return;
  waited_ns.resize(num_ranks * num_ranks);
  waits.resize(num_ranks);
  waited_ns[rank * num_ranks + last] += absl::ToInt64Nanoseconds(waited);
  waits[last].sum_ns += absl::ToInt64Nanoseconds(waited);
  ++waits[last].counts[BucketOf(waited, kWaitBounds)];
}

// The ranks that have announced an operation agree in its kind, or it fails.
KindCounts& OperationFigures::Of(const Operation& operation) {
  const auto said = absl::c_find_if(
      operation.parts, [](const Part& part) { return part.announced != absl::InfinitePast(); });
  const size_t kind = said == operation.parts.end() ? 0 : static_cast<size_t>(said->said.kind);
  return kinds_[kind < kKinds ? kind : 0];
}

void OperationFigures::Leaves(const Operation& operation, absl::Duration spent) {
  if (operation.phase == Phase::kFailed) return;
  Add(spent, Of(operation).phases[static_cast<size_t>(operation.phase)]);
  if (operation.phase == Phase::kGathering && operation.tenant->leads()) CountWaits(operation);
}

void OperationFigures::Add(absl::Duration spent, KindCounts::PhaseTimes& times) {
  times.sum += spent;
  ++times.counts[BucketOf(spent, kTimeBounds)];
}

void OperationFigures::CountDirect(shm::Kind kind, absl::Duration gathered) {
  const auto index = static_cast<size_t>(kind);
  KindCounts& counts = kinds_[index < kKinds ? index : 0];
  ++counts.by_outcome[static_cast<size_t>(absl::StatusCode::kOk)];
  Add(gathered, counts.phases[static_cast<size_t>(Phase::kGathering)]);
}

void OperationFigures::Decided(const Operation& operation, absl::StatusCode outcome) {
  KindCounts& counts = Of(operation);
  ++counts.by_outcome[std::min(static_cast<size_t>(outcome), counts.by_outcome.size() - 1)];
  if (outcome == absl::StatusCode::kOk) CountDropped(operation);
}

}  // namespace epd
