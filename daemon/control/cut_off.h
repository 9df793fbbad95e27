// Where a new formation starts to count: the cut-off rule over the sessions that stay.
#pragma once

#include <vector>

#include "daemon/core/execution.h"

namespace epd {

// `counts`: what the ranks that stay had begun when they drained; `bases`: those of the ended
// formation, which may name ranks that do not stay (ignored). `staying`: those ranks. Pairs that
// are not listed count as 0.
//
// Per program, the highest logical number that any staying rank has begun is the cut: max over
// ranks of (begun - base), at least 0. A staying rank's new base is its old one plus the cut, so
// all its executions below fail and its first above it is logical execution 0 everywhere; that
// holds for ranks that have not begun the program at all, too. A new session counts from 0 and gets
// no base. Cut-offs that a worker made within the formation shift all of a program's bases by the
// same number, so they need not be known here.
//
// Returns the bases that are not 0, sorted.
std::vector<ExecutionBase> CutOff(const std::vector<ExecutionCount>& counts,
                                  const std::vector<ExecutionBase>& bases,
                                  const std::vector<Rank>& staying);

}  // namespace epd
