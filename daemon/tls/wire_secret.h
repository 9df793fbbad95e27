// What workers know of each other once a formation has brought them together, and nobody else does.
//
// An epd makes a random wire secret at its start. Its report, and what the coordinator tells of a formation, carry it to the
// epds of the formation's nodes; there, and for its own workers, it is mixed with the cluster's secret, if there is one, so
// that whoever only reads packets without TLS does not have it. Each worker gets what follows from it for the pairs of
// which it is the caller.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "daemon/core/ids.h"

namespace epd {

// Of the workers of the epd that has made `wire_secret`.
std::string WorkerSecret(absl::string_view cluster_secret, absl::string_view wire_secret);

// With which the worker `from` calls `to`, whose own is `worker_secret`.
std::string SecretOfPair(absl::string_view worker_secret, Incarnation from, Incarnation to);

}  // namespace epd
