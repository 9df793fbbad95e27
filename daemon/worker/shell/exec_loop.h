// The worker's only thread that matters: looks at all slots, feeds the engine, carries out effects.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/backend/backend.h"
#include "daemon/backend/unique_id_maker.h"
#include "daemon/core/running_time.h"
#include "daemon/core/unique_fd.h"
#include "daemon/worker/engine/exchange.h"
#include "daemon/worker/shell/effect_performer.h"
#include "daemon/worker/shell/epd_socket.h"
#include "daemon/worker/shell/outcome_records.h"
#include "daemon/worker/shell/session_scan.h"
#include "proto/epd/v1/worker.pb.h"

namespace epd {

// What the loop owns from its start.
struct ExecLoopParts {
  OutcomeRecords records;
  Backends backends;                   // At least one.
  std::string no_cuda = {};            // Why "cuda" is not one of them.
  UniqueIdMaker::Make make_unique_id;  // Called on threads of its own.
  std::string page_program;            // PageProcesses'.
  std::unique_ptr<Wire> wire;          // Null: no streams to other nodes.
};

// Serves one epd, from its Hello to the end of its socket. The exec thread constructs and runs it.
class ExecLoop {
 public:
  // `stop`: set by a signal handler; the loop then ends as if epd were gone.
  ExecLoop(EpdSocket& epd, const v1::WorkerHello& hello, ExecLoopParts parts,
           const volatile std::sig_atomic_t& stop);

  // Runs until epd is gone; then every open submission has been answered with UNAVAILABLE. Returns why it
  // ended: UNAVAILABLE when epd closed the socket, else an error of ours.
  absl::Status Run();

 private:
  absl::Status SetUp();
  // One turn of all sessions. True: something was taken, and there may be more.
  bool ScanSessions();
  // Whether slots may be armed by GPU streams, which ring nothing.
  bool HasStreams() const;
  // What other nodes' workers said. True: something was taken.
  bool TakeWire();
  void Sleep();
  void PollEvents(int timeout_ms);
  absl::Time NextDeadline() const;
  int TimeoutMs();
  // Of `time_`, and the loop has looked.
  absl::Time Now();
  void SayStandstill();

  void ReadControl();
  void Handle(EpdMessage message);
  void Handle(const v1::AddSession& message, std::vector<UniqueFd> fds);
  absl::Status Enter(const v1::AddSession& message, std::vector<UniqueFd> fds);
  void Handle(const v1::SessionDead& message);
  void Handle(const v1::StartTenant& message);
  void Handle(const v1::EndTenant& message);
  void Handle(const v1::MakeUniqueId& message);
  void Handle(const v1::InitCommunicator& message);
  void Handle(const v1::NeighbourMessage& message, std::vector<UniqueFd> fds);
  void Handle(const v1::GetSnapshot& message);
  void Handle(const v1::GetPast& message);
  void Handle(const v1::GetTrace& message);
  // Figures between ranks, as far as they fit into the message.
  void AddBetweenRanks(const ExchangeSnapshot& snapshot, v1::WorkerSnapshot& out) const;
  void SendMadeIds();
  // Ends of streams for other workers of this node.
  void SendStreamEnds();
  void Send(const v1::FromWorker& message);
  // Leaves a message of epd's out and says so: what it asks for does not happen, and this worker lives on.
  void LeaveOut(absl::string_view what);
  void Fail(const absl::Status& status);
  // Whether a backend of this worker can serve the tenant.
  absl::Status CheckServed(const TenantStart& start) const;
  // Waits a little for what then is likely.
  bool EpdHasEnded();
  void AbortEverything();
  void LeaveToEpd();

  EpdSocket& epd_;
  OutcomeRecords records_;
  const Backends backends_;
  const std::string no_cuda_;
  const bool has_device_;  // One of the backends serves it.
  const std::unique_ptr<Wire> wire_;
  const volatile std::sig_atomic_t& stop_;
  const pid_t epd_pid_;
  const absl::Duration asked_spin_;
  const int num_cpus_;
  RunningTime time_;
  absl::Duration unsaid_ =
      absl::ZeroDuration();  // How long the loop did not run, and nobody was told.
  Exchange exchange_;
  SessionTable sessions_;
  SessionScan scan_;
  EffectPerformer performer_;
  UniqueIdMaker id_maker_;
  UniqueFd epoll_;
  bool watches_write_ = false;
  absl::Status status_;
};

}  // namespace epd
