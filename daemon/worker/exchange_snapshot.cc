#include "daemon/worker/exchange_snapshot.h"

#include "daemon/worker/exchange.h"

namespace epd {
namespace {

std::string PhaseForPeople(Phase phase) {
  switch (phase) {
    case Phase::kGathering:
      return "announce";
    case Phase::kQueued:
      return "queued";
    case Phase::kAdmitted:
      return "admitted";
    case Phase::kMoving:
      return "moving";
    case Phase::kGood:
      return "pulling";
    case Phase::kFailed:
      return "failed";
  }
  return "unknown";
}

std::string KindOf(const Operation& operation) {
  for (const Part& part : operation.parts) {
    if (part.state != PartState::kAbsent) return KindName(part.said.kind);
  }
  return "unknown";
}

}  // namespace

ExchangeSnapshot Exchange::Snapshot(absl::Time now) const {
  ExchangeSnapshot snapshot;
  for (const auto& [id, operation] : operations_) {
    snapshot.operations.push_back({.operation = id.value,
                                   .group = operation->tenant->start.group,
                                   .kind = KindOf(*operation),
                                   .phase = PhaseForPeople(operation->phase),
                                   .age = now - operation->first_announce,
                                   .waiting_for = operation->WaitingFor(),
                                   .region_bytes = operation->region ? operation->region->bytes : 0,
                                   .key = operation->Describe()});
  }
  for (const auto& [key, tenant] : tenants_) {
    if (tenant->gone()) continue;
    snapshot.tenants.push_back({.group = key.first,
                                .formation = key.second,
                                .generation = tenant->book.generation(),
                                .num_good = tenant->num_good,
                                .num_failed = tenant->num_failed,
                                .bytes_moved = tenant->bytes_moved});
  }
  const StagingPool& pool = staging_.pool();
  for (const StagingPool::SetStatus& status : pool.Sets()) {
    ExchangeSnapshot::SetLine line{
        .status = status, .groups = {}, .sessions = staging_.SessionsOf(status.id)};
    for (const auto& [key, tenant] : tenants_) {
      if (tenant->set == status.id && !tenant->gone()) line.groups.push_back(key.first);
    }
    snapshot.sets.push_back(std::move(line));
  }
  snapshot.pool_bytes = pool.budget_bytes();
  snapshot.pool_committed_bytes = pool.committed_bytes();
  snapshot.pool_peak_bytes = pool.peak_committed_bytes();
  return snapshot;
}

}  // namespace epd
