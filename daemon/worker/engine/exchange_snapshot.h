// What the engine is doing, for people.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "daemon/core/ids.h"
#include "daemon/worker/engine/operation_figures.h"
#include "daemon/worker/staging/staging_pool.h"

namespace epd {

class AdmissionQueue;
class OperationTable;
class Staging;
class TenantTable;
struct Tenant;

struct ExchangeSnapshot {
  struct OperationLine {
    uint64_t operation = 0;
    GroupId group;
    std::string kind;
    std::string phase;  // "announce", "queued", "admitted", "moving", "pulling", "failed".
    absl::Duration age;
    std::vector<Rank> waiting_for;
    uint64_t region_bytes = 0;
    std::string key;
  };
  struct TenantLine {
    GroupId group;
    Formation formation;
    uint64_t generation = 0;
    uint64_t num_good = 0;
    uint64_t num_failed = 0;
    uint64_t num_failed_calls = 0;
    uint64_t bytes_moved = 0;  // Staged by ranks of operations with a good outcome.
    uint64_t dropped_rows = 0;
    std::vector<int64_t> waited_ns = {};  // As in TenantCounters.
    std::vector<WaitCounts> waits = {};
    bool ended = false;
    uint32_t uid = 0;
    uint64_t staging_bytes = 0;  // That its operations hold, over all arenas here.
  };
  struct SessionLine {
    SessionId session;
    uint64_t num_operations = 0;  // That it takes part in.
  };
  // What the tenants of a uid have, also those that have ended.
  struct UseLine {
    uint32_t uid = 0;
    uint64_t num_operations = 0;
    uint64_t staging_bytes = 0;  // With what dead sessions still hold.
  };
  struct SetLine {
    StagingPool::SetStatus status;
    std::vector<GroupId> groups;
    std::vector<SessionId> sessions;
  };
  // One of the last operations of a rank.
  struct PastLine {
    Rank rank;
    std::string kind;
    std::string key;
    uint64_t fingerprint = 0;
    // Of this rank: "announce", "copying", ...; "done" or "failed" after its end.
    std::string phase;
    absl::Duration age;  // Since it announced.
    absl::StatusCode code = absl::StatusCode::kOk;
  };
  std::vector<OperationLine> operations;
  std::vector<TenantLine> tenants;
  std::vector<SetLine> sets;
  std::vector<UseLine> uses;          // By uid.
  std::vector<SessionLine> sessions;  // Those that take part in some.
  uint64_t pool_bytes = 0;
  uint64_t pool_committed_bytes = 0;
  uint64_t pool_peak_bytes = 0;
  std::array<KindCounts, OperationFigures::kKinds> kinds;
};

// Without `kinds`.
ExchangeSnapshot MakeSnapshot(const OperationTable& table, const TenantTable& tenants,
                              const AdmissionQueue& queue, const Staging& staging, absl::Time now);

// The last operations of the tenant's ranks on this node, by rank, the newest first: `max_of_rank` of each, or as many
// of each as make `max_lines` in all.
std::vector<ExchangeSnapshot::PastLine> ListPast(const Tenant& tenant, const OperationTable& table,
                                                 size_t max_of_rank, size_t max_lines,
                                                 absl::Time now);

}  // namespace epd
