// What the workers of an operation say before its rows go by a communicator, and what its leader tells each of it. Pure.
//
// A rank knows from its own routes how many tokens it has for each other rank; who receives them knows it only when it is
// told. A pair of workers whose sizes differ waits for ever, so all numbers go through the leader, which tells all or none.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "daemon/core/ids.h"
#include "daemon/worker/engine/tenant_peers.h"

namespace epd {

// Of one worker.
struct PreparedRows {
  uint64_t digest = 0;  // Of what all workers must have alike.
  // [its ranks, R] tokens of each that go to each rank, each token once; empty: it does not say.
  std::vector<uint32_t> tokens_to = {};
};
using PreparedWorkers = std::map<Incarnation, PreparedRows>;

// For each worker [R, its ranks] tokens that each rank has for each of its own. Empty unless all have said so.
std::map<Incarnation, std::vector<uint32_t>> TokensFrom(const TenantPeers& peers,
                                                        const PreparedWorkers& prepared);

}  // namespace epd
