// What a worker knows about a tenant of which others serve ranks, too.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/core/ids.h"
#include "daemon/worker/engine/peer_message.h"
#include "daemon/worker/engine/submission.h"
#include "daemon/worker/engine/tenant_start.h"

namespace epd {

struct TenantPeers {
  Incarnation self;
  Incarnation leader;
  std::vector<PeerWorker> nodes;          // Itself included.
  std::vector<Incarnation> node_of_rank;  // [num_ranks]
  std::map<uint64_t, OperationId> by_number;
  std::map<OperationKey, std::set<Rank>> rows_ahead;  // Whose rows are here and wait; rows_ahead.h.

  // The leader's failures that not everybody has seen: what was announced before is void.
  struct Failure {
    uint64_t seq = 0;
    OperationKey key;
    std::set<Incarnation> unseen;
  };
  std::vector<Failure> failures;
  uint64_t last_failure = 0;  // Leader: the last one's number. Else: the last one seen.
  // Other workers' refusals, from the first of a drain in order on, of which the ranks here have not heard yet.
  std::vector<std::pair<Incarnation, PeerMessage>> refused_elsewhere;
  std::set<Incarnation> idle_streams;  // Leader: the workers that have said so.
  bool leader_spoke = false;           // The leader has ended the formation, or is lost.
  bool broken_reported = false;

  bool leads() const { return self == leader; }
  // Then all that is said of an operation is on one stream each way.
  bool are_two() const { return nodes.size() == 2; }
  bool Serves(Incarnation node) const;
  std::vector<Rank> RanksOf(Incarnation node) const;
};

// Makes them for a tenant that starts, some of whose ranks have no session here.
//   UNIMPLEMENTED        its ranks write into staging on several devices
//   FAILED_PRECONDITION  a node takes no streams, or this worker is not of the formation; says what to do
absl::StatusOr<TenantPeers> MakePeers(const TenantStart& start, Incarnation self);

}  // namespace epd
