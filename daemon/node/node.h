// The control thread: control's machines, the edges around them, and the loop that connects the
// two.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/control/node_control.h"
#include "daemon/node/attach/attach_server.h"
#include "daemon/node/attach/client_gateway.h"
#include "daemon/node/control_queue.h"
#include "daemon/node/coordination.h"
#include "daemon/node/effect_sender.h"
#include "daemon/node/handover/handover_fields.h"
#include "daemon/node/handover/replacement.h"
#include "daemon/node/lifetime.h"
#include "daemon/node/loop/event_loop.h"
#include "daemon/node/loop/thread_role.h"
#include "daemon/node/request_deduplicator.h"
#include "daemon/node/settings/settings.h"
#include "daemon/node/workers/fresh_figures.h"
#include "daemon/node/workers/worker_questions.h"
#include "daemon/node/workers/worker_table.h"
#include "daemon/tls/certificate_files.h"
#include "proto/epd/v1/handover.pb.h"

namespace epd {

// What is shared out, as it is set now.
NodeLimits LimitsOf(const Settings& settings);

// This run of epd.
struct NodeIdentity {
  NodeId id;
  std::string host;
  std::string version;  // epd's.
  uint64_t incarnation = 0;
  absl::Time started;          // The first program's of this process, if it was replaced.
  std::string cluster_secret;  // What nodes without TLS know of each other; "": with TLS, or none.
  std::string wire_secret;     // daemon/tls/wire_secret.h
  uint32_t num_replacements = 0;
};

// Makes the parts, connects them and gives each its turn; what is to be known or decided is theirs.
// All members but loop() belong to the control thread, the one that calls Run(). Other threads post
// work to the loop.
class Node {
 public:
  struct Options {
    std::string version;  // epd's.
    std::string host;
    const CertificateFiles& certificates;  // Started; outlives the node, as `settings` does.
    std::string cluster_secret = {};
    // Of the program that this one replaces; outlives the constructor.
    const v1::Handover* before = nullptr;
  };

  // `settings` may change in what SIGHUP changes. Starts nothing.
  Node(const ParsedSettings& settings, Options options);
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // Enters the workers that start with epd. Before Run(). Errors as WorkerTable::Add.
  absl::Status AddWorkers();
  // What goes on in another program of this process, but for control's state. CanSave() first: UNAVAILABLE, a worker
  // does not read. Save() ends sessions whose client does not.
  absl::Status CanSave() const { return workers_.CanSave(); }
  void Save(v1::Handover& out, OutgoingFds& fds);
  // Before AddWorkers(). `control`: what the node's control knew. DATA_LOSS, RESOURCE_EXHAUSTED.
  absl::Status Restore(const v1::Handover& in, NodeState control, IncomingFds& fds);
  Replacement& replacement() { return replacement_; }

  // Takes clients from `listener` (listening, SEQPACKET, non-blocking); as AttachListener::Start. Errors as
  // EventLoop::Add.
  absl::Status Listen(UniqueFd listener);

  // Starts the workers and handles events until the node has shut down. `on_stopping` runs when the
  // shutdown begins, before anybody is turned away: remove the socket there, so that no new client
  // finds a daemon that is about to end.
  void Run(std::function<void()> on_stopping);

  // Begins an orderly end: joins are refused, groups drain, sessions end `deadline` from now at the
  // latest. Clients that connect are told `why`. The second call ends everything at once.
  void BeginShutdown(absl::Duration deadline, const absl::Status& why);

  // Thread-safe: Post() only.
  EventLoop& loop() { return loop_; }

  // Queues an event for control; its effects run before this turn of the loop ends.
  void Handle(NodeEvent event) { queue_.Push(std::move(event)); }
  // `watcher` runs at the end of each turn in which control handled events.
  void SetWatcher(std::function<void()> watcher) { queue_.SetWatcher(std::move(watcher)); }

  // Runs `then` once all workers' figures are fresh, or after a short wait for one that does not
  // answer.
  void WithFreshFigures(std::function<void()> then);
  // Runs `done` with the last operations of the groups' ranks here; without what their workers do
  // not say soon.
  void AskForPast(const std::vector<GroupId>& groups, uint32_t max_of_rank,
                  PastQuestions::Done done);
  // Runs `done` with what these workers keep of traces; without what they do not say soon.
  void AskForTraces(const std::map<WorkerName, v1::GetTrace>& questions, TraceQuestions::Done done);

  Coordination& coordination() { return coordination_; }
  const Coordination& coordination() const { return coordination_; }
  // Operators' requests. An answer is given once, now or later; the same key again gets the same.
  RequestDeduplicator& requests() { return requests_; }

  const ParsedSettings& parsed() const { return parsed_; }
  const Settings& settings() const { return parsed_.settings; }
  const CertificateFiles& certificates() const { return certificates_; }
  const NodeIdentity& identity() const { return identity_; }
  const NodeId& id() const { return identity_.id; }
  const NodeControl& control() const { return queue_.control(); }
  const WorkerTable::Map& workers() const { return workers_.all(); }
  // The CPU's worker.
  const WorkerSupervisor& worker() const { return workers_.Find(kCpuWorker)->supervisor; }
  const AttachServer& clients() const { return clients_; }
  const ClientGateway& client_gateway() const { return client_gateway_; }
  const GroupHistory& history() const { return effects_.history(); }
  // What a group has that its spec does not name.
  const SpecDefaults& spec_defaults() const { return client_gateway_.defaults(); }
  bool stopping() const { return lifetime_.ending(); }
  // Why new clients do not reach this epd; "": they do.
  const std::string& socket_problem() const { return socket_problem_; }
  void SetSocketProblem(std::string problem) {
    socket_problem_ = std::move(problem);
    queue_.MarkChanged();
  }

 private:
  EffectSender::Targets Targets();
  void Turn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void HandleClients() ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void SayStandstill();
  void CheckIdle(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  absl::Time NextDeadline() const;

  const ParsedSettings& parsed_;
  const CertificateFiles& certificates_;
  const NodeIdentity identity_;
  ThreadRole role_;

  EventLoop loop_;
  RequestDeduplicator requests_;
  ControlQueue queue_;
  Coordination coordination_;
  WorkerTable workers_;
  FreshFigures figures_;
  PastQuestions past_;
  TraceQuestions traces_;
  ClientGateway client_gateway_;
  AttachServer clients_;
  EffectSender effects_;
  Lifetime lifetime_;
  Replacement replacement_;
  std::string socket_problem_;
  std::function<void()> on_stopping_ ABSL_GUARDED_BY(role_);
};

}  // namespace epd
