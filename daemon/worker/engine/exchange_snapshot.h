// What the engine is doing, for people.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "daemon/core/ids.h"
#include "daemon/worker/staging/staging_pool.h"

namespace epd {

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
    uint64_t bytes_moved = 0;  // Staged by ranks of operations with a good outcome.
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
    std::string
        phase;  // Of this rank: "announce", "copying", ...; "done" or "failed" after its end.
    absl::Duration age;  // Since it announced.
    absl::StatusCode code = absl::StatusCode::kOk;
  };
  std::vector<OperationLine> operations;
  std::vector<TenantLine> tenants;
  std::vector<SetLine> sets;
  uint64_t pool_bytes = 0;
  uint64_t pool_committed_bytes = 0;
  uint64_t pool_peak_bytes = 0;
};

}  // namespace epd
