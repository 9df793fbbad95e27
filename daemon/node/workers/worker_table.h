// The node's workers: one of the CPU, and one of each GPU that epd serves.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/worker_name.h"
#include "daemon/node/attach/attach_server.h"
#include "daemon/node/loop/event_loop.h"
#include "daemon/node/loop/event_sink.h"
#include "daemon/node/workers/direct_gates.h"
#include "daemon/node/workers/pending_arenas.h"
#include "daemon/node/workers/segment.h"
#include "daemon/node/workers/worker_gateway.h"
#include "daemon/node/workers/worker_supervisor.h"

namespace epd {

// What stays of a worker when its process is replaced. Nothing of it is shared with another one's:
// the end of one is no event for the others.
struct WorkerEntry {
  WorkerEntry(SharedSegment made, WorkerGateway::Options said, WorkerSupervisor::Options run,
              const EventSink& sink, EventLoop& loop)
      : name(said.name),
        records(std::move(made)),
        gateway(std::move(said), sink, loop, {records, arenas, gates, totals}),
        supervisor(std::move(run), loop, records, gateway) {}
  WorkerEntry(const WorkerEntry&) = delete;
  WorkerEntry& operator=(const WorkerEntry&) = delete;

  const WorkerName name;
  SharedSegment records;
  PendingArenas arenas;
  DirectGates gates;
  GroupTotals totals;
  WorkerGateway gateway;
  WorkerSupervisor supervisor;
};

// Control thread.
class WorkerTable {
 public:
  struct Parts {
    EventLoop& loop;
    EventSink sink;
    WorkerGateway::Options gateway;  // But for the name.
    std::function<WorkerSupervisor::Options(const WorkerName&)> options;
    uint32_t num_slots = shm::kSlotsPerSession;  // slots_per_session.
  };
  using Map = std::map<WorkerName, std::unique_ptr<WorkerEntry>>;

  explicit WorkerTable(Parts parts) : parts_(std::move(parts)) {}
  // Whose sessions the workers serve; before the first Add's worker starts.
  void SetServer(AttachServer* server) { server_ = server; }

  // Enters the worker, of which control is told; its process starts with the next Tick. Does nothing
  // when it is there.
  //   RESOURCE_EXHAUSTED  memory or descriptors
  absl::Status Add(const WorkerName& name);

  // Whether Save() would lose nothing that is on its way to a worker; else UNAVAILABLE, names it.
  absl::Status CanSave() const;
  void Save(v1::Handover& out, OutgoingFds& fds) const;
  // Before the first Add: the workers go on. DATA_LOSS, RESOURCE_EXHAUSTED.
  absl::Status Restore(const v1::Handover& in, IncomingFds& fds);

  // Null: there is no such worker.
  WorkerEntry* Find(const WorkerName& name) const;
  const Map& all() const { return entries_; }
  // Of a session for the worker: slots_per_session, unless its records were handed over and have room for fewer.
  uint32_t NumSlots(const WorkerName& name) const;

  // Drops it when the worker is not there.
  void Send(const WorkerName& to, const v1::ToWorker& message);

  // From one worker to the run `to` of another; dropped when that is over, of which all its neighbours hear.
  void PassOn(Incarnation to, const v1::ToWorker& message, std::vector<UniqueFd> fds);

  // Tells every worker that the session has slots of.
  void EndSession(const AttachSession& session, const absl::Status& cause, bool process_alive);

  // Asks all for figures. OweFigures: whether one that can be waited for has not answered since
  // `since`; one that has owed an answer for `patience` is stopped or stuck, and waiting for it
  // again would only make everybody wait.
  void AskForFigures(absl::Time now);
  bool OweFigures(absl::Time since, absl::Duration patience) const;

  // True: one has fallen silent, or is silent no more.
  bool Tick(absl::Time now);
  absl::Time NextDeadline() const;
  // Ends all by `deadline`.
  void Stop(absl::Time deadline);

 private:
  WorkerEntry& Enter(const WorkerName& name, SharedSegment records);
  Parts parts_;
  AttachServer* server_ = nullptr;
  Map entries_;
};

}  // namespace epd
