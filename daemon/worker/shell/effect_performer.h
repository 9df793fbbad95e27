// Carries out the engine's effects: slots, records, arenas, messages to epd.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/backend/backend.h"
#include "daemon/core/running_time.h"
#include "daemon/worker/engine/effects.h"
#include "daemon/worker/engine/exchange.h"
#include "daemon/worker/engine/log_limiter.h"
#include "daemon/worker/peer_streams/wire.h"
#include "daemon/worker/shell/arena_table.h"
#include "daemon/worker/shell/direct_areas.h"
#include "daemon/worker/shell/epd_socket.h"
#include "daemon/worker/shell/outcome_records.h"
#include "daemon/worker/shell/route_counts.h"
#include "daemon/worker/shell/session_scan.h"

namespace epd {

// Exec thread only. All references outlive this.
class EffectPerformer {
 public:
  // `backends`: at least one; the first serves groups that name none.
  // `time`: the loop's, which is what it passes as `now`. `page_program`: PageProcesses'.
  EffectPerformer(Exchange& exchange, SessionTable& sessions, OutcomeRecords& records,
                  const Backends& backends, EpdSocket& epd, Wire* wire, const RunningTime& time,
                  std::string page_program)
      : exchange_(exchange),
        sessions_(sessions),
        records_(records),
        backends_(backends),
        epd_(epd),
        wire_(wire),
        time_(time),
        arenas_(exchange.staging().pool().budget_bytes(), std::move(page_program)),
        direct_(records.touched_user()) {}
  ~EffectPerformer();
  EffectPerformer(const EffectPerformer&) = delete;
  EffectPerformer& operator=(const EffectPerformer&) = delete;

  // Carries out everything that the engine asks for, until it asks for nothing more.
  void RunAll(absl::Time now);
  // The same, but only the records are written: whoever reads them answers in this worker's place.
  void RunRecords();
  // This process ends, and with it nobody says any more that regions are freed: a rank that reads what was good would read
  // zeros and not know it.
  void LeavePages() { arenas_.LeavePages(); }
  // Looks which moves have ended and which arenas are there, and carries out what follows. Call
  // again and again while busy().
  void PollBackends(absl::Time now);
  bool busy() const;
  // Makes and takes down some arenas, sees to their pages, and carries out what follows. Call again and again while
  // arenas().has_work(), and when arenas().ready_fd() is readable.
  void WorkOnArenas(absl::Time now);
  ArenaTable& arenas() { return arenas_; }
  const ArenaTable& arenas() const { return arenas_; }
  // Says who is late that makes or gives back pages.
  void TickArenas(absl::Time now);
  // Ends the sessions of arenas that have lost pages (page_guard.h), before the engine hears that rows in them are good. Whether
  // there were any; what follows is carried out with the next RunAll.
  bool EndSetsWithoutPages(absl::Time now);
  void Log(const LogLine& line) { Run(line); }
  void Evict(const EvictSession& session) { Run(session); }
  // What is too long for a message is left out, and said.
  void Send(const v1::FromWorker& message, const std::vector<int>& fds = {});

  // What is equal on all ranks, for row movement; told before the tenant starts.
  //   any error  its rows cannot go between nodes (member_moves.h)
  absl::Status AddTenant(const TenantStart& start, absl::Time now);
  // Feeds the engine what another worker says, with the rows that came along.
  void Hear(PeerSaid said, absl::Time now);
  // Another node's worker is gone.
  void WorkerLost(Incarnation worker, const absl::Status& cause, absl::Time now);
  void RemoveTenant(GroupId group, Formation formation);
  // Null: the formation is not known.
  const Routes* RoutesOf(GroupId group, Formation formation) const;
  // How the formation's rows go; of one that has ended nothing.
  RowLink LinkOf(GroupId group, Formation formation) const;

  // Feeds the engine a claimed submission, with what the ranks have done without this worker.
  void Take(const Submission& submission, const shm::SlotRequest& request, absl::Time now);
  // Counts what ranks have done without this worker until now.
  void TakeDirect(absl::Time now);
  // As far as it is due: clients may have this asked for as often as they like.
  void TakeDueDirect(absl::Time now);
  // Whether PollDirect has something to look for: it is to be called again and again.
  bool awaits_direct() const { return direct_.awaits(); }
  void PollDirect(absl::Time now);
  // Whether PollStreams has something to look for, likewise.
  bool awaits_streams() const { return !draining_streams_.empty(); }
  void PollStreams(absl::Time now);

  // The first error of the socket to epd or of a device, which ends the worker.
  const absl::Status& status() const { return status_; }
  bool device_lost() const { return device_lost_; }

 private:
  struct TenantFacts {
    MoveGroup move;
    Routes routes;
    MemberMoves* members = nullptr;        // Of move.communicator.
    std::vector<SessionId> sessions = {};  // [num_ranks] of those here.
    const char* link = "";                 // RowLink::name where there are no `members`.
  };
  // What ranks have done without this worker.
  void Note(DirectOutcome outcome, absl::Time now);
  DirectAreas::Take NoteAt(absl::Time now) {
    return [this, now](const DirectOutcome& outcome) { Note(outcome, now); };
  }
  static StageToSend MakeStage(const TenantFacts& tenant, const char* base,
                               const Announcement& said, Rank rank);
  using TenantKey = std::pair<GroupId, Formation>;
  TouchedUser::Scope Touch(ArenaSetId set) const {
    return {records_.touched_user(), arenas_.UidOf(set)};
  }

  void Run(const LinkSubmission& effect);
  void Run(const OpenRecord& effect) { records_.OpenOperation(effect.operation); }
  void Run(const DecideRecord& effect) { records_.Decide(effect.operation, effect.status); }
  void Run(const CloseRecord& effect) { records_.CloseOperation(effect.operation); }
  void Run(const NameEagerBuffers& effect);
  void Run(const EndDirect& effect) { direct_.End(effect.set); }
  void Run(const AwaitDirect& effect) { direct_.Await(effect, now_); }
  void Run(const AwaitStreams& effect) { draining_streams_.push_back(effect); }
  void Run(const AnswerSubmission& effect);
  void Run(const CommitPages& effect);
  void Run(const CancelPages& effect);
  void DoArenaWork();
  void Run(const CreateArenas& effect);
  void Run(const DropArenas& effect);
  void Run(const ReportTenantReady& effect);
  void TakeMoved(Backend& backend);
  // What the backend tells other workers of this node, and people.
  void SendForNeighbours(MemberMoves& members);
  // Of a spec that was let in.
  Backend& BackendFor(const std::string& asked) const;
  absl::Status EnterCommunicator(const TenantStart& start, TenantFacts& facts);
  // Of a tenant whose arenas are there.
  absl::Status Entered(const ReportTenantReady& effect) const;
  void Run(const ReportTenantDrained& effect);
  void Run(const MoveRows& effect);
  void Run(const TakeTurn& effect);
  void Run(const CancelMove& effect);
  void Run(const CountRoutes& effect);
  void Run(const SendToPeer& effect);
  void Run(const OpenWire& effect);
  void Run(const SendRows& effect);
  void Run(const SendRowsAhead& effect);
  void Run(const LandRows& effect);
  void Run(const DropRows& effect);
  void Run(const CloseWire& effect);
  void Run(const ReportTenantBroken& effect);
  void Run(const EvictSession& effect);
  void Run(const LogLine& effect);

  Exchange& exchange_;
  SessionTable& sessions_;
  OutcomeRecords& records_;
  const Backends& backends_;
  EpdSocket& epd_;
  Wire* const wire_;  // Null: this worker has no streams to other nodes.
  const RunningTime& time_;
  ArenaTable arenas_;
  uint64_t late_bytes_ = 0;   // Of them, as far as the engine knows.
  uint64_t short_bytes_ = 0;  // The same of memory's shortage.
  DirectAreas direct_;
  std::vector<AwaitStreams> draining_streams_;
  std::vector<ReportTenantReady> not_ready_;  // Their arenas are being made.
  std::map<TenantKey, TenantFacts> tenants_;
  RouteCounter route_counter_;
  LogLimiter log_limiter_;
  absl::Status status_;
  bool device_lost_ = false;
  absl::Time now_;
};

}  // namespace epd
