#include "daemon/worker/engine/direct_outcome.h"

#include <algorithm>

#include "proto/epd/v1/operation_kind.h"

namespace epd {
namespace {

// Longer waits go through the worker.
constexpr absl::Duration kLongestWait = absl::Seconds(1);

absl::Duration Believable(absl::Duration said) {
  return std::clamp(said, absl::ZeroDuration(), kLongestWait);
}

}  // namespace

void CountDirect(const DirectOutcome& outcome, Tenant& tenant, OperationFigures& figures) {
  const auto num_ranks = static_cast<uint32_t>(tenant.num_ranks());
  const uint32_t rank = outcome.rank.value;
  const bool is_known =
      outcome.said.kind >= shm::Kind::kPrepare && outcome.said.kind <= shm::Kind::kCombineBackward;
  if (rank >= num_ranks || !is_known) return;
  // What it may do next is decided when it announces: here it only has begun.
  (void)tenant.executions.Enter(outcome.rank, outcome.key.execution.program, outcome.key.named,
                                outcome.raw_execution);
  if (!outcome.ended) return;
  if (!outcome.announced) {
    tenant.past->Add(rank, outcome.key, outcome.name, outcome.said,
                     {outcome.published_at, outcome.ended_at});
  }
  TenantCounters& counters = tenant.counters;
  counters.bytes_moved += outcome.said.stage_bytes;
  if (Scatters(outcome.said.kind) && outcome.said.demand > outcome.said.recv_capacity)
    counters.dropped_rows += outcome.said.demand - outcome.said.recv_capacity;
  if (outcome.last_rank < num_ranks)
    counters.CountWait(rank, outcome.last_rank, num_ranks, Believable(outcome.waited));
  if (rank != 0) return;
  ++counters.num_good;
  figures.CountDirect(outcome.said.kind, Believable(outcome.gathered));
}

}  // namespace epd
