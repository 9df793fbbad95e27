// Keeps one epd-worker running: starts it, watches it, kills it when it is stuck, replaces it when
// it is dead.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/backoff.h"
#include "daemon/node/handover/handover_fields.h"
#include "daemon/node/loop/event_loop.h"
#include "daemon/node/workers/hold_up.h"
#include "daemon/node/workers/segment.h"
#include "daemon/packet/packet_channel.h"
#include "daemon/process/process_state.h"
#include "daemon/process/spawn.h"
#include "proto/epd/v1/handover.pb.h"
#include "proto/epd/v1/worker.pb.h"

namespace epd {

// What the supervisor tells its owner. Called on the loop's thread.
class WorkerObserver {
 public:
  virtual ~WorkerObserver() = default;
  // A new process exists and has been sent Hello; send it the sessions now.
  virtual void OnWorkerSpawned() = 0;
  // It serves. From here on it answers armed slots itself.
  virtual void OnWorkerReady(uint64_t worker_incarnation, const v1::WorkerReady& ready) = 0;
  virtual void OnWorkerMessage(uint64_t worker_incarnation, const v1::FromWorker& message,
                               std::vector<UniqueFd> fds) = 0;
  // It waits in the kernel for that user's memory and so answers nobody (hold_up.h). Said once, beside `silent`.
  virtual void OnWorkerHeldUp(uint32_t uid) = 0;
  // It was reaped: nothing of it runs any more. `cause` is UNAVAILABLE and says how it
  // ended; `was_ready`: OnWorkerReady came before.
  virtual void OnWorkerDead(uint64_t worker_incarnation, bool was_ready,
                            const absl::Status& cause) = 0;
};

//   STARTING --WorkerReady--> RUNNING
//      |  ^                      |
//      |  +---- BACKING_OFF <----+  (reaped)       any --Stop()--> STOPPED
//      +------------^
class WorkerSupervisor {
 public:
  enum class State { kStarting, kRunning, kBackingOff, kStopped };

  struct Options {
    std::string name;  // For the log.
    std::string binary;
    v1::WorkerHello hello;  // worker_incarnation is filled in at each start.
    PacketChannel::Fds certificates = {};
    Backoff::Policy backoff;
    absl::Duration heartbeat = absl::Seconds(1);
    absl::Duration stuck = absl::Seconds(30);
    absl::Duration silence = absl::Seconds(2);  // Owing an answer for longer: it does not serve.
    // Whether the process's first thread, on which a worker serves, is in an uninterruptible sleep.
    std::function<bool(int pid)> waits_in_kernel = WaitsInKernel;
  };

  struct Figures {
    State state = State::kBackingOff;
    int pid = 0;
    uint64_t worker_incarnation = 0;
    uint32_t num_restarts = 0;
    std::map<std::string, uint32_t> restarts =
        {};            // By cause: "exited", "signal_9", "unanswered", ...
    absl::Time since;  // Of `state`.
    std::string last_exit;
    v1::WorkerReady ready;        // Of the last worker that got so far.
    v1::WorkerSnapshot snapshot;  // The newest; of a dead worker too.
    absl::Time snapshot_at = absl::InfinitePast();
    absl::Time asked_at = absl::InfiniteFuture();  // Since when a GetSnapshot is unanswered.
    bool silent = false;                           // Running, and unanswered for Options::silence.
    std::optional<uint32_t> held_up_by =
        {};  // While it is silent: the uid whose memory it waits for.
  };

  // `records` is sent to every worker. All references must outlive this.
  WorkerSupervisor(Options options, EventLoop& loop, const SharedSegment& records,
                   WorkerObserver& observer);
  ~WorkerSupervisor();

  // Runs what is due: the next start, a heartbeat, the end of a stuck worker. True: it has fallen
  // silent, or is silent no more.
  bool Tick(absl::Time now);
  absl::Time NextDeadline() const;

  // Sends, if a worker is there; else the message is dropped (the next worker is told everything
  // anew).
  void Send(const v1::ToWorker& message, PacketChannel::Fds fds = {});

  // Asks for figures at once, unless an answer is awaited already.
  void AskForSnapshot(absl::Time now);

  // Closes its socket, on which it begins to end by itself; Stop follows.
  void HangUp();

  // Ends it: closes its socket, on which it exits by itself, and kills it at `deadline`. Returns
  // once it is reaped, or 5 s after the kill if the kernel cannot end it. No observer is called any
  // more.
  void Stop(absl::Time deadline);

  // Whether all that was sent has gone out: what waits for the worker to read is not handed over.
  bool CanSave() const {
    return !channel_.has_value() || !(channel_->wants_write() || channel_->has_descriptors_ahead());
  }
  void Save(v1::HandoverWorker::Process& out, OutgoingFds& fds) const;
  // Goes on with the worker's process, before the first Tick; its parent is this process still. Errors as
  // EventLoop::Add.
  absl::Status Restore(const v1::HandoverWorker::Process& in, IncomingFds& fds);

  const Figures& figures() const { return figures_; }
  bool running() const { return figures_.state == State::kRunning; }

 private:
  void Start(absl::Time now);
  PacketChannel MakeChannel(UniqueFd socket) const;
  absl::Status WatchChild();
  void OnSocket(uint32_t events);
  void OnExit();
  void Disconnect();
  void SendFailed(const absl::Status& why);
  void OnMessage(const v1::FromWorker& message, std::vector<UniqueFd> fds);
  void OnSnapshot(v1::WorkerSnapshot part);
  void Kill(const std::string& why);
  void StartFailed(absl::Time now, const absl::Status& why);
  bool UpdateSilence(absl::Time now);
  void LookAtWorker(absl::Time now);
  void Enter(State state, absl::Time now);

  Options options_;
  EventLoop& loop_;
  const SharedSegment& records_;
  WorkerObserver& observer_;
  Backoff backoff_;

  Figures figures_;
  v1::FromWorker said_;  // The parts of a snapshot that have come.
  std::optional<Child> child_;
  std::optional<PacketChannel> channel_;
  std::string killed_because_;
  absl::Time started_at_ = absl::InfinitePast();
  absl::Time next_start_ = absl::InfinitePast();
  absl::Time next_heartbeat_ = absl::InfiniteFuture();
  absl::Time deaf_since_ = absl::InfiniteFuture();  // Its socket has closed.
  HoldUp hold_up_;
  uint64_t next_request_ = 1;
};

// "STARTING", "RUNNING", "BACKING_OFF", "STOPPED".
absl::string_view Name(WorkerSupervisor::State state);
// "memory of uid=1001", what a silent worker waits for in the kernel; empty where that is not known.
std::string WaitsFor(const WorkerSupervisor::Figures& figures);

}  // namespace epd
