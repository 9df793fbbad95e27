// Whether two operations wait for each other's ranks.
#pragma once

#include <vector>

#include "daemon/worker/engine/operation.h"

namespace epd {

// An operation among `others` that crosses `operation`: both gather, a rank that `operation` misses
// has announced the other one, and a rank that the other one misses has announced `operation`.
// That is what programs launched in different orders look like. Null when there is none.
const Operation* FindCrossed(const Operation& operation, const std::vector<Operation*>& others);

}  // namespace epd
