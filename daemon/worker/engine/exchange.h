// The worker's engine: matches the ranks' uses of slots into operations and decides their outcomes.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/ids.h"
#include "daemon/worker/engine/effects.h"
#include "daemon/worker/engine/exchange_snapshot.h"
#include "daemon/worker/engine/operation.h"
#include "daemon/worker/engine/stream_site.h"
#include "daemon/worker/engine/tenant.h"
#include "daemon/worker/staging/staging.h"
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
  EagerOptions eager = {};
  Incarnation self = {};             // This worker, for the workers of other nodes.
  uint64_t stream_region_bytes = 0;  // Of each arena, at its start.
};

// Operations pair up by identity, never by order. One is admitted when every rank has announced it
// and the calls agree; admission takes the region in all arenas at once, first come first served.
// From then on it waits for copies only, and copies wait for nothing: so there is no deadlock.
//
// Small rows may stand in eager buffers when their rank announces (kAnnounceStaged). If all do, the
// operation needs no region and is good at once: one wait instead of two.
//
// A failure is collective: the outcome is decided once and every rank is told the same cause, at
// its open use or at its next one. An own-input error, an overflow and want of staging fail the
// execution; a missed deadline and a disagreement end the tenant's generation; a dead session and
// EndTenant end the formation. A rank that comes late hears the cause that the others heard, also
// when the formation has ended since.
//
// Calls in a GPU's stream say the same at every use: the engine counts the uses of each site, keeps
// which operation a site is in, and gives a tenant's stream region, its only one, to one of them at a time.
//
// Reads no clock and touches no memory: events go in with the time, effects come out and are to be
// carried out in order, before the next event. Not thread-safe.
class Exchange {
 public:
  explicit Exchange(ExchangeOptions options);

  void AddSession(SessionId session);
  // Its ranks' tenants end with `cause`. With `process_alive` its arenas stay charged until a
  // second call says that the process is gone.
  void SessionDead(SessionId session, const absl::Status& cause, bool process_alive,
                   absl::Time now);

  // An older formation of the group is ended with ABORTED if it has not been ended.
  //   INVALID_ARGUMENT    a member is missing, or its session is unknown
  //   ALREADY_EXISTS      this or a newer formation was started
  absl::Status StartTenant(TenantStart start, absl::Time now);
  void EndTenant(GroupId group, Formation formation, const absl::Status& cause, absl::Time now);
  void DrainTenant(GroupId group, Formation formation, absl::Time now);

  // EndTenant for all of them: the worker stops.
  void EndEverything(const absl::Status& cause, absl::Time now);

  // A claimed use. `request` is a private copy of client memory and may hold anything.
  void Take(const Submission& submission, const shm::SlotRequest& request, absl::Time now);

  // Answers to CommitPages and MoveRows.
  void PagesCommitted(OperationId operation, const absl::Status& status, absl::Time now);
  void RowsMoved(OperationId operation, const absl::Status& status, absl::Time now);

  // ---- operations on several nodes (peers.h) ----

  // What MoveRows was told to move by a communicator can be, with what `digest` names.
  void RowsPrepared(OperationId operation, uint64_t digest, absl::Time now);

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

  Effects TakeEffects() { return std::exchange(effects_, {}); }

  ExchangeSnapshot Snapshot(absl::Time now) const;
  // The last operations of a group's ranks on this node, by rank, the newest first: `max_of_rank`
  // of each, or as many of each as make `max_lines` in all.
  std::vector<ExchangeSnapshot::PastLine> Past(GroupId group, size_t max_of_rank, size_t max_lines,
                                               absl::Time now) const;
  const Staging& staging() const { return staging_; }
  size_t num_open_operations() const { return operations_.size(); }

 private:
  using TenantKey = std::pair<GroupId, Formation>;
  struct Session {
    size_t num_parts = 0;  // Parts in operations that are not done.
  };

  // exchange.cc: sessions, tenants
  Tenant* FindTenant(GroupId group, Formation formation);
  Tenant* CurrentTenant(GroupId group) const;
  absl::Status CheckStart(const TenantStart& start) const;
  absl::Status TakeArenas(Tenant& tenant, const ArenaSetKey& key);
  void EndFormation(Tenant& tenant, const absl::Status& cause);
  void ForgetSession(SessionId session);
  void ReleaseTenantIfIdle(Tenant& tenant);
  void ForgetEndedTenants();
  void FinishEvent(absl::Time now);

  // exchange_submissions.cc: the three steps
  void Announce(const Submission& submission, const shm::SlotRequest& request, absl::Time now);
  Tenant* TenantOf(const shm::SlotRequest& request);
  void AnnounceInTenant(Tenant& tenant, const Submission& submission,
                        const shm::SlotRequest& request, absl::Time now);
  absl::Status CheckRoom(SessionId session) const;
  absl::StatusOr<Operation*> FindOrCreate(Tenant& tenant, const OperationKey& key,
                                          const Submission& submission,
                                          const shm::SlotRequest& request, absl::Time now);
  absl::Status TakeAnnouncement(Part& part, const Tenant& tenant,
                                const shm::SlotRequest& request) const;
  Operation& Create(Tenant& tenant, const OperationKey& key, std::string name, absl::Time now);
  void OneMoreAnnounced(Operation& operation, absl::Time now);
  void AllAnnounced(Operation& operation, absl::Time now);
  void Enqueue(Operation& operation, uint64_t bytes, const Ticket& ticket, absl::Time now);
  void Granted(Operation& operation, absl::Time now);
  Operation* FindForSubmission(const Submission& submission, const shm::SlotRequest& request,
                               PartState expected);
  void Publish(const Submission& submission, const shm::SlotRequest& request, absl::Time now);
  void Pulled(const Submission& submission, const shm::SlotRequest& request);
  void PumpQueue(absl::Time now);
  absl::Status CheckStreamRegion(Operation& operation, uint64_t bytes) const;
  bool GrantStreamRegions(absl::Time now);
  void FreeRegion(Operation& operation);
  void Admit(Operation& operation, absl::Time now);

  // exchange_moves.cc: the worker moves rows
  void StartMove(Operation& operation, absl::Time now);
  RegionView ViewOf(const Operation& operation, uint32_t rank) const;

  // exchange_streams.cc: call sites in a GPU's stream
  void TakeStream(const Submission& submission, const shm::SlotRequest& request, absl::Time now);
  void BeginStreamSubmission(StreamSite& site, const Submission& submission,
                             const shm::SlotRequest& request, absl::Time now);
  void StreamPublish(StreamSite& site, const Submission& submission,
                     const shm::SlotRequest& request, absl::Time now);
  void StreamPulled(const StreamSiteKey& key, const Submission& submission,
                    const shm::SlotRequest& request);
  void FreeSite(const StreamSiteKey& key);
  void TakeHeld(absl::Time now);
  void RefuseHeld(const absl::Status& cause);
  static bool MayMeet(const Operation& operation);
  void EndAligning(const Operation& operation);
  void Align(Tenant& tenant);
  static shm::SlotRequest CountStreamSubmission(Tenant& tenant, const shm::SlotRequest& request);

  // exchange_outcome.cc: deciding, telling, closing
  void DecideGood(Operation& operation, absl::Time now);
  void TellEagerBuffers(const Operation& operation);
  std::vector<uint64_t> StageOffsets(const Operation& operation) const;
  void FailOperation(Operation& operation, const absl::Status& cause);
  void FailWithExecution(Operation& operation, const absl::Status& cause);
  void FailLocally(Tenant& tenant, const OperationKey& key, const absl::Status& cause, bool apart);
  void FailExecution(Tenant& tenant, const OperationKey& key, const absl::Status& cause,
                     const std::set<Rank>& may_come);
  void EndGeneration(Tenant& tenant, const absl::Status& cause);
  void EndDivergedGeneration(Tenant& tenant, const absl::Status& cause);
  std::vector<Operation*> UndecidedOf(const Tenant& tenant);
  void CloseIfOver(Operation& operation);
  void Finish(Operation& operation, uint32_t rank);
  void Answer(const Operation& operation, uint32_t rank, shm::Step step,
              const absl::Status& status);
  void Refuse(const Submission& submission, const absl::Status& status);
  void NoteCause(const Submission& submission, const absl::Status& status);

  // exchange_leader.cc: operations on several nodes
  absl::Status StartWithPeers(Tenant& tenant);
  void Tell(Tenant& tenant, Incarnation to, PeerMessage message, absl::Time now);
  void TellOthers(Tenant& tenant, const PeerMessage& message);
  void HandleMessage(Tenant& tenant, Incarnation from, const PeerMessage& message, absl::Time now);
  void TellAnnounced(const Operation& operation, absl::Time now);
  void AskReserve(Operation& operation, uint64_t bytes, absl::Time now);
  void AskRevokes(const Ticket& older, absl::Time now);
  void TellGranted(Operation& operation, absl::Time now);
  void SendStage(const Operation& operation, uint32_t rank);
  void MaybePublished(Operation& operation, absl::Time now);
  void TellPublished(Operation& operation, absl::Time now);
  void CloseWireOf(Operation& operation);
  void AskLeaderToFail(Tenant& tenant, const OperationKey& key, const absl::Status& cause,
                       bool apart);
  void LeaderFails(Tenant& tenant, const OperationKey& key, const absl::Status& cause, bool apart);
  void EndWithPeers(Tenant& tenant, const absl::Status& cause, bool leader_spoke, bool report);
  Operation* FindByNumber(Tenant& tenant, uint64_t number);
  void OnAnnounce(Tenant& tenant, Incarnation from, const PeerMessage& message, absl::Time now);
  void OnReserve(Tenant& tenant, const PeerMessage& message, absl::Time now);
  void OnGranted(Tenant& tenant, Incarnation from, const PeerMessage& message, absl::Time now);
  void OnRevoke(Tenant& tenant, Incarnation from, const PeerMessage& message, absl::Time now);
  void OnRevoked(Tenant& tenant, const PeerMessage& message);
  void OnAdmit(Tenant& tenant, const PeerMessage& message, absl::Time now);
  void OnPublished(Tenant& tenant, Incarnation from, const PeerMessage& message, absl::Time now);
  void OnDecided(Tenant& tenant, const PeerMessage& message);
  // exchange_issue_order.cc: the order of a communicator
  void OnPrepared(Tenant& tenant, Incarnation from, const PeerMessage& message, absl::Time now);
  void GiveIssuePlace(Operation& operation);
  void OnIssue(Tenant& tenant, const PeerMessage& message);
  void CancelMoves(const Tenant& tenant);
  void OnRefused(Tenant& tenant, Incarnation from, const PeerMessage& message);
  void OnFailed(Tenant& tenant, const PeerMessage& message, absl::Time now);
  void OnFailedSeen(Tenant& tenant, Incarnation from, const PeerMessage& message);

  // exchange_deadlines.cc
  void SetDeadline(Operation& operation, absl::Time deadline);
  void OnDeadline(Operation& operation, absl::Time now);
  void OnGatheringDeadline(Operation& operation, absl::Time now);
  void WarnOfAbsent(const Operation& operation, const std::vector<Operation*>& undecided,
                    absl::Duration age);
  void EvictHolders(Operation& operation);

  const ExchangeOptions options_;
  Staging staging_;
  Effects effects_;
  std::map<SessionId, Session> sessions_;
  std::map<TenantKey, std::unique_ptr<Tenant>> tenants_;
  std::map<OperationId, std::unique_ptr<Operation>> operations_;
  std::deque<OperationId> queue_;  // Announced by all, waiting for staging; by ticket.
  std::set<std::pair<absl::Time, OperationId>> deadlines_;
  std::set<uint64_t> record_slots_;  // Outcome records in use: id % kMaxOperations.
  uint64_t next_operation_;
  uint64_t clock_ = 0;                                        // Lamport's, for tickets.
  std::map<std::pair<GroupId, Epoch>, uint64_t> next_place_;  // By communicator; the leader's.
  bool pump_ = false;
  std::map<StreamSiteKey, StreamSite> sites_;
  std::vector<StreamSiteKey> freed_sites_;  // With an announce to be taken.
  absl::Time now_;                          // Of the event in work.
};

}  // namespace epd
