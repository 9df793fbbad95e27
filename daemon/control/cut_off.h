// Where a new formation starts to count: the cut-off rule over the sessions that stay.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/core/execution.h"

namespace epd {

// Bases of a formation, and counts of one session's record, each of which becomes a base: no message that starts a tenant has
// room for more (worker_codec.cc). What it has room for depends on the spec, too, and is checked where it is sent.
inline constexpr size_t kMaxExecutionBases = 12000;

// What a group with this many bases is told.
//   RESOURCE_EXHAUSTED  above kMaxExecutionBases
absl::Status CheckNumBases(size_t num_bases, size_t num_ranks);

// `counts`: what the ranks that stay had begun when they drained; `bases`: those of the ended
// formation, which may name ranks that do not stay (ignored). `staying`: those ranks. Pairs that
// are not listed count as 0.
//
// Every rank's next execution is number 0 of the new formation, however many it has begun: ranks that try again
// meet at once, though one may have tried a thousand times while another did not. Only a rank that has begun fewer
// executions of a program than another one, and whose last call did not fail, does not know yet of the failure that
// the others know: its next execution of that program fails with the cause, and the one after it is number 0. So no
// rank is ever more than one failed call away from its peers. A new session counts from 0 and gets no base.
//
// Returns the bases that are not 0, sorted. Takes n log n of what is listed and returned.
//   RESOURCE_EXHAUSTED  they are more than kMaxExecutionBases
absl::StatusOr<std::vector<ExecutionBase>> CutOff(const std::vector<ExecutionCount>& counts,
                                                  const std::vector<ExecutionBase>& bases,
                                                  const std::vector<Rank>& staying);

}  // namespace epd
