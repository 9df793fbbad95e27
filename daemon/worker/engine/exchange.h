// The worker's engine: matches the ranks' submissions into operations and decides their outcomes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/core/ids.h"
#include "daemon/worker/engine/direct_outcome.h"
#include "daemon/worker/engine/effects.h"
#include "daemon/worker/engine/engine_limits.h"
#include "daemon/worker/engine/exchange_snapshot.h"
#include "daemon/worker/engine/operation_traces.h"
#include "daemon/worker/engine/peer_message.h"
#include "daemon/worker/engine/prepared_rows.h"
#include "daemon/worker/engine/submission.h"
#include "daemon/worker/engine/tenant_start.h"
#include "daemon/worker/staging/staging.h"
#include "proto/epd/v1/limits.h"
#include "proto/epd/v1/segment.h"

namespace epd {

struct ExchangeOptions {
  uint64_t staging_bytes = 0;         // The pool's budget, over all arenas.
  uint64_t device_staging_bytes = 0;  // The same of device memory.
  uint64_t page_bytes = 4096;
  uint64_t first_operation_id = 1;  // Above every id of an earlier worker.
  // How long a client may keep a region after its operation's outcome.
  absl::Duration hold_limit = absl::Seconds(30);
  size_t max_open_operations = shm::kMaxOperations;
  EngineLimits limits = {};
  EagerOptions eager = {};
  Incarnation self = {};             // This worker, for the workers of other nodes.
  uint64_t stream_region_bytes = 0;  // Of each arena, at its start.
  uint64_t traced_per_second = 0;    // OperationTraces::Limits::parts_per_second.
};

// Operations pair up by identity, never by order. One is admitted when every rank has announced it
// and the calls agree; admission takes the region in all arenas at once, first come first served.
// From then on it waits for copies only, and copies wait for nothing: so there is no deadlock.
//
// Small rows may stand in eager buffers when their rank announces (kAnnounceStaged). If all do, the
// operation needs no region and is good at once: one wait instead of two.
//
// A failure is collective: the outcome is decided once and every rank is told the same cause, at
// its open submission or at its next one. An own-input error, an overflow and want of staging fail the
// execution; a missed deadline and a disagreement end the tenant's generation; a dead session and
// EndTenant end the formation. A rank that comes late hears the cause that the others heard, also
// when the formation has ended since.
//
// Calls in a GPU's stream say the same every time: the engine counts the calls of each site, keeps which
// operation a site is in, and gives a tenant's stream region, its only one, to one of them at a time.
//
// It is composed of parts that own their state; each one knows only the parts above it:
//   OperationTable   the open operations, by id and by key; record slots, deadlines, sessions' shares
//   StreamSites      the call sites of GPUs' streams; tenant.h's StreamRound counts their calls
//   AdmissionQueue   who waits for staging, by ticket
//   TenantTable      sessions, tenants and their arenas
//   Outcomes         one operation's end, decided once, and the answers
//   Failures         what a failure takes along: an execution, a generation, a formation
//   RowsAhead        small rows that go between two workers before their operation has a region
//   LeaderProtocol   what workers of one group tell each other
//   OperationSteps   announce, publish, pulled: from a claimed submission to its operation
//   DeadlineWatch    what happens to who is late
// Exchange itself routes events to them.
//
// Reads no clock and touches no memory: events go in with the time, effects come out and are to be
// carried out in order, before the next event. Not thread-safe.
class Exchange {
 public:
  explicit Exchange(const ExchangeOptions& options);
  ~Exchange();

  void AddSession(SessionId session, uint32_t uid = 0, uint32_t num_slots = limits::kMinOpSlots);
  // Its ranks' tenants end with `cause`. With `process_alive` its arenas stay charged until a
  // second call says that the process is gone.
  void SessionDead(SessionId session, const absl::Status& cause, bool process_alive,
                   absl::Time now);

  // An older formation of the group is ended with ABORTED if it has not been ended.
  //   INVALID_ARGUMENT    a member is missing, or its session is unknown
  //   ALREADY_EXISTS      this or a newer formation was started
  absl::Status StartTenant(TenantStart start, absl::Time now);
  void EndTenant(GroupId group, Formation formation, const absl::Status& cause, absl::Time now);
  // Refuses what is new, at once or, `in_order`, once the GPUs' streams of all ranks have ended what was in them.
  void DrainTenant(GroupId group, Formation formation, absl::Time now, bool in_order = false);

  // EndTenant for all of them: this worker is replaced for `cause`.
  void EndEverything(const absl::Status& cause, absl::Time now);
  // The same: this worker stops, because `why`.
  void Stop(absl::string_view why, absl::Time now);

  // A claimed submission. `request` is a private copy of client memory and may hold anything.
  // `met`: every rank has published the call for itself (direct_area.h).
  void Take(const Submission& submission, const shm::SlotRequest& request, absl::Time now,
            bool met = false);

  // How many ranks' parts an announce may touch; 1 of any other step.
  size_t NumParts(const shm::SlotRequest& request) const;

  // Answers AwaitDirect.
  void DirectIdle(GroupId group, Formation formation, absl::Time now);
  // Answers AwaitStreams.
  void StreamsIdle(GroupId group, Formation formation, absl::Time now);
  // What a rank has recorded of a call that ranks made for themselves; any bytes. Of a formation that is not known any
  // more it is dropped.
  void NoteDirect(const DirectOutcome& outcome, absl::Time now);

  // Memory of arenas that was to be given back long ago, and is not back: until it is, operations wait for so much more of the pool.
  void SetWithheld(uint64_t bytes, absl::Time now);
  // Why pages of users are neither made nor given back at the moment, by uid; of others nothing is known. For the errors of
  // operations that wait for them.
  void SetPageProblems(std::map<uint32_t, std::string> problems);
  // Memory that others have taken: as StagingPool::SetShortage.
  void SetShortage(uint64_t bytes, std::string why, absl::Time now);
  // Answers to CommitPages and MoveRows.
  void PagesCommitted(OperationId operation, const absl::Status& status, absl::Time now);
  void RowsMoved(OperationId operation, const absl::Status& status, absl::Time now);

  // ---- operations on several workers (peer_message.h) ----

  // What MoveRows was told to move by a communicator can be.
  void RowsPrepared(OperationId operation, PreparedRows rows, absl::Time now);

  // Answers to SendRowsAhead: all are on the stream, or the stage of `rank` is damaged.
  void RowsAheadSent(OperationId operation, absl::Time now);
  void RowsAheadRefused(OperationId operation, Rank rank, const absl::Status& cause,
                        absl::Time now);

  // What another node's worker says. Messages of one worker come in the order in which it sent them.
  void Receive(Incarnation from, const PeerMessage& message, absl::Time now);
  // The stream from or to a worker is lost, for good: what it serves with this one ends.
  void PeerLost(Incarnation peer, const absl::Status& cause, absl::Time now);
  // All rows of a rank of another node are in the operation's region.
  void RowsLanded(const PeerOperation& operation, Rank rank, absl::Time now);
  // What a rank of this node has staged cannot be sent: its stage is damaged.
  void RowsRefused(const PeerOperation& operation, Rank rank, const absl::Status& cause,
                   absl::Time now);

  // Carries out deadlines that have passed; call at or after next_deadline().
  void Tick(absl::Time now);
  absl::Time next_deadline() const;

  Effects TakeEffects();

  ExchangeSnapshot Snapshot(absl::Time now) const;
  // The last operations of a group's ranks on this node, by rank, the newest first: `max_of_rank`
  // of each, or as many of each as make `max_lines` in all.
  std::vector<ExchangeSnapshot::PastLine> Past(GroupId group, size_t max_of_rank, size_t max_lines,
                                               absl::Time now) const;
  // What ranks do when, while somebody wants it.
  OperationTraces& traces();
  // Somebody wants it until then, at least; also of what is open already, as far as it is known: since when.
  void KeepTraces(absl::Time until);
  const Staging& staging() const;
  size_t num_open_operations() const;

 private:
  struct Parts;
  // Retries what waits until nothing changes any more.
  void FinishEvent();

  std::unique_ptr<Parts> parts_;
};

}  // namespace epd
