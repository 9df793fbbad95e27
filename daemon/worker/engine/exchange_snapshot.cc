#include "daemon/worker/engine/exchange_snapshot.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/worker/engine/admission_queue.h"
#include "daemon/worker/engine/operation_table.h"
#include "daemon/worker/engine/tenant_table.h"
#include "daemon/worker/staging/staging.h"

namespace epd {
namespace {

// How long, and how many at once, formations that have ended are told of: epd adds up what they counted, and asks far
// more often; a message has a limit.
constexpr absl::Duration kTellsEnded = absl::Seconds(10);
constexpr size_t kMaxEndedTold = 512;

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

std::string FindKind(const Operation& operation) {
  for (const Part& part : operation.parts) {
    if (part.state != PartState::kAbsent) return KindName(part.said.kind);
  }
  return "unknown";
}

std::string PhaseForPeople(PartState state) {
  switch (state) {
    case PartState::kAbsent:
      return "absent";
    case PartState::kAnnounced:
      return "announce";
    case PartState::kCopying:
      return "copying";
    case PartState::kPublished:
      return "publish";
    case PartState::kReading:
      return "reading";
    case PartState::kPulled:
      return "pulled";
    case PartState::kDone:
      return "done";
  }
  return "unknown";
}

// A rank that ended well has gone through all phases; of one that did not the last one counts.
std::string PhaseOfEnded(const PastOperation& past) {
  if (past.code == absl::StatusCode::kOk) return "done";
  return absl::StrCat("failed in ", PhaseForPeople(past.state));
}

std::vector<ExchangeSnapshot::SetLine> ListSets(const Staging& staging,
                                                const TenantTable& tenants) {
  std::vector<StagingPool::SetStatus> sets = staging.pool().Sets();
  const std::vector<StagingPool::SetStatus> on_device = staging.device_pool().Sets();
  sets.insert(sets.end(), on_device.begin(), on_device.end());
  std::vector<ExchangeSnapshot::SetLine> lines;
  for (const StagingPool::SetStatus& status : sets) {
    ExchangeSnapshot::SetLine line{
        .status = status, .groups = {}, .sessions = staging.SessionsOf(status.id)};
    for (const auto& [key, tenant] : tenants.all()) {
      if (tenant->set == status.id && !tenant->gone()) line.groups.push_back(key.first);
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace

std::vector<ExchangeSnapshot::PastLine> ListPast(const Tenant& tenant, const OperationTable& table,
                                                 size_t max_of_rank, size_t max_lines,
                                                 absl::Time now) {
  std::vector<ExchangeSnapshot::PastLine> lines;
  const size_t num_local = std::max<size_t>(tenant.past->num_callers(), 1);
  const size_t depth = std::min(max_of_rank, max_lines / num_local);
  for (uint32_t rank = 0; rank < tenant.past->num_ranks(); ++rank) {
    for (const PastOperation& past : tenant.past->Newest(rank, depth)) {
      const Operation* open = table.Find(past.operation);
      const bool ended = past.ended != absl::InfiniteFuture() || open == nullptr;
      lines.push_back(
          {.rank = Rank(rank),
           .kind = KindName(past.kind),
           .key = absl::StrCat(past.name.data(), " ", Describe(past.key)),
           .fingerprint = past.fingerprint,
           .phase = ended ? PhaseOfEnded(past) : PhaseForPeople(open->parts[rank].state),
           .age = now - past.announced,
           .code = past.code});
    }
  }
  return lines;
}

ExchangeSnapshot MakeSnapshot(const OperationTable& table, const TenantTable& tenants,
                              const AdmissionQueue& queue, const Staging& staging, absl::Time now) {
  ExchangeSnapshot snapshot;
  for (const auto& [id, operation] : table.all()) {
    snapshot.operations.push_back(
        {.operation = id.value,
         .group = operation->tenant->start.group,
         .kind = FindKind(*operation),
         .phase = PhaseForPeople(operation->phase),
         .age = now - operation->first_announce,
         .waiting_for = operation->WaitingFor(),
         .region_bytes = operation->region ? operation->region->bytes : 0,
         .key = absl::StrCat(operation->name, " ", Describe(operation->key))});
  }
  size_t num_ended = 0;
  for (const auto& [key, tenant] : tenants.all()) {
    if (tenant->gone()) {
      const bool told = now > tenant->closed_at + kTellsEnded || num_ended >= kMaxEndedTold;
      if (told) continue;
      ++num_ended;
    }
    snapshot.tenants.push_back(
        {.group = key.first,
         .formation = key.second,
         .generation = tenant->executions.generation(),
         .num_good = tenant->counters.num_good,
         .num_failed = tenant->counters.num_failed,
         .num_failed_calls = tenant->counters.num_failed_calls,
         .bytes_moved = tenant->counters.bytes_moved,
         .dropped_rows = tenant->counters.dropped_rows,
         .waited_ns = tenant->gone() ? std::vector<int64_t>() : tenant->counters.waited_ns,
         .waits = tenant->gone() ? std::vector<WaitCounts>() : tenant->counters.waits,
         .ended = tenant->gone(),
         .uid = tenant->uid,
         .staging_bytes = queue.StagedBytes(*tenant)});
  }
  for (const auto& [session, num_parts] : table.num_parts()) {
    if (num_parts > 0) snapshot.sessions.push_back({session, num_parts});
  }
  std::map<uint32_t, ExchangeSnapshot::UseLine> uses;
  for (const auto& [uid, num_open] : table.num_of_uid()) uses[uid].num_operations = num_open;
  for (const auto& [uid, bytes] : staging.InUseByUid()) uses[uid].staging_bytes = bytes;
  for (auto& [uid, use] : uses) {
    use.uid = uid;
    snapshot.uses.push_back(use);
  }
  snapshot.sets = ListSets(staging, tenants);
  const StagingPool& pool = staging.pool();
  snapshot.pool_bytes = pool.budget_bytes();
  snapshot.pool_committed_bytes = pool.committed_bytes();
  snapshot.pool_peak_bytes = pool.peak_committed_bytes();
  return snapshot;
}

}  // namespace epd
