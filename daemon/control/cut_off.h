// Where a new formation starts to count: the cut-off rule over the sessions that stay.
#pragma once

#include <vector>

#include "daemon/core/execution.h"

namespace epd {

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
// Returns the bases that are not 0, sorted.
std::vector<ExecutionBase> CutOff(const std::vector<ExecutionCount>& counts,
                                  const std::vector<ExecutionBase>& bases,
                                  const std::vector<Rank>& staying);

}  // namespace epd
