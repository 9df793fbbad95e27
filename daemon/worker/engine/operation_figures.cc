#include "daemon/worker/engine/operation_figures.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "daemon/worker/engine/tenant.h"
#include "proto/epd/v1/operation_kind.h"

namespace epd {
namespace {

void CountWaits(const Operation& operation) {
  Tenant& tenant = *operation.tenant;
  const size_t num_ranks = operation.parts.size();
  const auto last = absl::c_max_element(
      operation.parts, [](const Part& a, const Part& b) { return a.announced < b.announced; });
  const auto column = static_cast<size_t>(last - operation.parts.begin());
  tenant.counters.waited_ns.resize(num_ranks * num_ranks);
  for (size_t row = 0; row < num_ranks; ++row) {
    tenant.counters.waited_ns[row * num_ranks + column] +=
        absl::ToInt64Nanoseconds(last->announced - operation.parts[row].announced);
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
  const auto bound = absl::c_lower_bound(kTimeBounds, absl::ToDoubleSeconds(spent));
  ++times.counts[static_cast<size_t>(bound - kTimeBounds.begin())];
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
