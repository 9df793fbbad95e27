// Whether ranks wait for each other in different operations or programs, so that none can ever go on.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/worker/engine/operation.h"
#include "daemon/worker/engine/tenant.h"

namespace epd {

// A rank runs the executions of its programs one after another (names promise no order, so named
// operations do not count). If every rank waits since `since` or longer in an operation that
// gathers, each in one execution only, and these are not all the same one, then every rank
// waits for one that waits for it: the wait has no end. One rank without such an operation, which
// may be compiling or saving, and it is no finding.
//
// `undecided`: the tenant's undecided operations.
//   INVALID_ARGUMENT  names each execution with its ranks, the first field of the fingerprint in
//                     which the calls differ, if any does, the ranks that are the odd ones out, and
//                     those without tokens, if only some have none.
absl::Status CheckDivergence(const std::vector<Operation*>& undecided, const Tenant& tenant,
                             absl::Time since);

// An operation among `others` that crosses `operation`: both gather, a rank that `operation` misses
// has announced the other one, and a rank that the other one misses has announced `operation`.
// That is what programs launched in different orders look like. Null when there is none.
const Operation* FindCrossed(const Operation& operation, const std::vector<Operation*>& others);

}  // namespace epd
