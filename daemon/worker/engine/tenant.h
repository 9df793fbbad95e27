// One formation of one tenant of a group: its ranks' sessions and what they have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/ids.h"
#include "daemon/worker/engine/execution_history.h"
#include "daemon/worker/engine/operation_figures.h"
#include "daemon/worker/engine/past_operations.h"
#include "daemon/worker/engine/stream_round.h"
#include "daemon/worker/engine/tenant_peers.h"
#include "daemon/worker/engine/tenant_start.h"
#include "daemon/worker/staging/staging_pool.h"

namespace epd {

struct TenantCounters {
  uint64_t num_good = 0;
  uint64_t num_failed = 0;
  uint64_t num_failed_calls = 0;  // Of local ranks.
  uint64_t bytes_moved = 0;
  uint64_t dropped_rows = 0;       // Of local ranks.
  std::vector<int64_t> waited_ns;  // [num_ranks, num_ranks] of a rank for the last one; or empty.
  std::vector<WaitCounts> waits;   // [num_ranks] by the last one; or empty.

  // `rank` has waited for `last`, one of `num_ranks`.
  void CountWait(uint32_t rank, uint32_t last, size_t num_ranks, absl::Duration waited);
};

struct Tenant {
  explicit Tenant(TenantStart s)
      : start(std::move(s)), executions(start.spec.num_ranks, start.bases, start.base_cause) {
    for (const RankHolder& member : start.members) sessions.push_back(member.session);
  }

  TenantStart start;                // After ForgetMembers without lists.
  std::vector<SessionId> sessions;  // [num_ranks] 0: another worker serves it.
  ExecutionHistory executions;
  uint32_t uid = 0;  // Of its sessions here, which are all of one.
  ArenaSetId set;
  std::vector<int> arena_of_rank;    // [num_ranks] index in the set; -1: none.
  std::optional<TenantPeers> peers;  // Several workers serve the ranks.
  uint64_t stream_region_bytes = 0;  // Of each arena, at its start; 0: not on a device.
  StreamRound streams;               // Of calls in GPUs' streams.
  uint64_t num_open = 0;             // Operations that are not closed; the operation table counts.
  absl::Status ended;                // Not OK: every announce fails with it.
  bool closed = false;               // EndTenant came; the arenas go with the last open operation.
  absl::Time closed_at = absl::InfinitePast();
  bool draining = false;
  bool drains_in_order = false;  // For a stop: its members join again.
  bool drain_reported = false;
  bool listed = false;  // Of the table's ended ones.
  // It drains, but streams of some rank may have calls in them: those begin yet.
  bool streams_end = false;
  bool goes_direct = false;    // Its ranks were told that they may publish calls for themselves.
  bool awaits_direct = false;  // AwaitDirect was asked for.

  // What DeadlineWatch does with operations that still gather costs all of them, so it does it now and then.
  absl::Time looked = absl::InfinitePast();
  int num_warned = 0;  // Since then.

  TenantCounters counters;
  std::shared_ptr<PastOperations> past;  // Of earlier formations of the group, too.

  // Only its cause is left.
  bool gone() const { return closed && num_open == 0 && !awaits_direct; }
  // No late call waits in it any more: its leader, if it is another worker, has said why it ended.
  bool settled() const { return gone() && (leads() || peers->leader_spoke); }
  // Thousands that have ended are remembered: what is long, and no late call is told. Of a settled one.
  void ForgetMembers() {
    start.members = std::vector<RankHolder>();
    start.bases = std::vector<ExecutionBase>();
    start.nodes = std::vector<PeerWorker>();
    start.spec.expert_owner = {};
  }
  size_t num_ranks() const { return sessions.size(); }
  // Who holds the rank; of members that are forgotten only its session is known.
  RankHolder MemberOf(uint32_t rank) const {
    if (rank < start.members.size()) return start.members[rank];
    return RankHolder{
        .rank = Rank(rank), .node = {}, .session = sessions[rank], .host = {}, .client_name = {}};
  }
  // Bytes, roughly, of its executions and past operations.
  size_t bytes_remembered() const { return executions.bytes() + past->bytes(); }
  // Its clients may stage small rows before they announce.
  bool may_send_eagerly() const {
    return !worker_executor() && set && !start.on_device() && num_ranks() <= limits::kEagerRanks;
  }
  // Its small rows go between its workers ahead of the announce.
  bool sends_ahead() const { return peers.has_value() && may_send_eagerly(); }
  // Its ranks may make calls for themselves.
  bool may_go_direct() const {
    return may_send_eagerly() && !peers.has_value() && !draining && !closed && ended.ok();
  }
  bool local(uint32_t rank) const { return static_cast<bool>(sessions[rank]); }
  // Its rows go between workers from device to device, and not through this worker's streams.
  bool by_communicator() const { return peers.has_value() && start.on_device(); }
  // Whether this worker knows of every rank's announce.
  bool leads() const { return !peers.has_value() || peers->leads(); }
  bool worker_executor() const { return start.spec.executor == Executor::kWorker; }
};

}  // namespace epd
