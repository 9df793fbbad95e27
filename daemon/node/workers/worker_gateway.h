// Translates what one worker does to what control understands, and answers in its place when it is
// dead.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "daemon/core/worker_name.h"
#include "daemon/node/attach/attach_server.h"
#include "daemon/node/loop/event_loop.h"
#include "daemon/node/loop/event_sink.h"
#include "daemon/node/workers/direct_gates.h"
#include "daemon/node/workers/group_totals.h"
#include "daemon/node/workers/pending_arenas.h"
#include "daemon/node/workers/poison_pass.h"
#include "daemon/node/workers/segment.h"
#include "daemon/node/workers/worker_supervisor.h"

namespace epd {

// The order that keeps shared memory sound:
//   a session ends    `ended` is set in its slots, then the worker is told and may free peers'
//   regions a worker dies     it is reaped, the ranks' gates are ended, undecided records become failed, open slots are
//   poisoned, control hears of it
class WorkerGateway : public WorkerObserver {
 public:
  struct Options {
    WorkerName name;
    std::string host;
    std::string node;
    // "group=... epoch=..." of a group id, for messages.
    std::function<std::string(GroupId)> describe_group;
    std::function<void(const v1::WorkerPast&)> on_past;    // The worker answers a GetPast.
    std::function<void(const v1::WorkerTrace&)> on_trace;  // ... a GetTrace.
    std::string wire_secret =
        {};  // Told to those whom a formation brings together with the worker.
    // The worker has a message for another one of this node; the table sets it.
    std::function<void(Incarnation to, const v1::ToWorker&, std::vector<UniqueFd>)> pass_on = {};
  };

  // What it keeps up to date beside its own; all outlive this.
  struct Kept {
    SharedSegment& records;
    PendingArenas& arenas;
    DirectGates& gates;
    GroupTotals& totals;
  };

  WorkerGateway(Options options, EventSink sink, EventLoop& loop, Kept kept);
  // These call this object and are called back by it.
  void SetPeers(WorkerSupervisor* supervisor, AttachServer* server);

  // A session has slots for this worker from now on, or ended.
  void AddSession(const AttachSession& session);
  void EndSession(const AttachSession& session, const absl::Status& cause, bool process_alive);

  // Ends what clients arm while no worker answers, a turn of it. Call at NextSweep().
  void Sweep(absl::Time now);
  // Calls of a worker that is dead may be open: no other one is to be started yet, which would know nothing of them.
  bool ends_calls() const { return ends_calls_ && !supervisor_->running(); }
  absl::Time NextSweep() const;

  void Save(v1::HandoverWorker& out, OutgoingFds& fds) const;
  void Restore(const v1::HandoverWorker& in, IncomingFds& fds);

  void OnWorkerSpawned() override;
  void OnWorkerReady(uint64_t incarnation, const v1::WorkerReady& ready) override;
  void OnWorkerMessage(uint64_t incarnation, const v1::FromWorker& message,
                       std::vector<UniqueFd> fds) override;
  void OnWorkerHeldUp(uint32_t uid) override;
  void OnWorkerDead(uint64_t incarnation, bool was_ready, const absl::Status& cause) override;

 private:
  void SendAddSession(const AttachSession& session);
  // The session's slots for this worker; null when it has none.
  const WorkerSlots* FindSlots(const AttachSession& session) const;
  void OnTenantReady(Incarnation worker, const v1::TenantReady& ready, std::vector<UniqueFd> fds);
  void WatchProcess(const AttachSession& session, const absl::Status& cause);
  void WatchLingering(pid_t pid, SessionId id);
  void SendSessionDead(SessionId session, const absl::Status& cause, bool process_alive);
  absl::Status PoisonCause(const shm::SlotRequest& request) const;

  Options options_;
  EventSink sink_;
  EventLoop& loop_;
  SharedSegment& records_;
  PendingArenas& arenas_;
  DirectGates& gates_;
  GroupTotals& totals_;
  WorkerSupervisor* supervisor_ = nullptr;
  AttachServer* server_ = nullptr;
  std::string ends_because_;  // What the worker that is ending said.
  absl::Status down_because_ = absl::UnavailableError("the worker is starting; call again");
  // Sessions that ended while their process lives on and may still write to its arenas, by process: those of
  // pid 0 are told apart by session.
  using LingeringKey = std::pair<pid_t, SessionId>;
  struct Lingering {
    UniqueFd pidfd;
    std::map<SessionId, absl::Status> sessions;  // With the cause of their end.
  };
  std::map<LingeringKey, Lingering> lingering_;
  absl::Time next_sweep_ = absl::InfinitePast();
  PoisonPass pass_;
  bool ends_calls_ = true;  // No pass is over since the worker's death.
  uint64_t num_ended_ = 0;  // In this pass.
};

}  // namespace epd
