// The control thread: control's machines, the edges around them, and the loop that connects the
// two.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/control/node_control.h"
#include "daemon/control/rendezvous.h"
#include "daemon/node/attach/attach_server.h"
#include "daemon/node/attach/client_gateway.h"
#include "daemon/node/cluster_ports.h"
#include "daemon/node/effect_sender.h"
#include "daemon/node/loop/event_loop.h"
#include "daemon/node/loop/thread_role.h"
#include "daemon/node/request_deduplicator.h"
#include "daemon/node/settings/settings.h"
#include "daemon/node/workers/past_questions.h"
#include "daemon/node/workers/worker_table.h"

namespace epd {

// How a node begins to coordinate.
struct Leading {
  Epoch floor;                // Epochs begin above it.
  std::set<NodeId> expected;  // The other living nodes.
  // Epochs from here on are not to be used up: `resign` is called, once.
  Epoch resign_at{UINT64_MAX};
  std::function<void()> resign;
  std::vector<PersistentGroup> persistent = {};  // What operators made earlier.
  // Called when that has changed, with all of it; Rendezvous::OnKept says that it is kept.
  std::function<void(const std::vector<PersistentGroup>&)> keep = nullptr;
};

// All members but loop() belong to the control thread, the one that calls Run(). Other threads post
// work to the loop.
class Node {
 public:
  struct Options {
    std::string version;  // Of epd.
    std::string host;
  };

  // `settings` outlives this. Starts nothing.
  Node(const ParsedSettings& settings, Options options);
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // `link`: to the epd of --coordinator, else null. `streams`: to other nodes when this epd
  // listens, else null. Before Run().
  void SetCluster(CoordinatorLink* link, ClusterStreams* streams);
  // Enters the workers that start with epd. Before Run(). Errors as WorkerTable::Add.
  absl::Status AddWorkers();
  // What AskNodes uses while this node coordinates, also when it does not listen. Before Run().
  void SetAsking(ClusterStreams& streams) { own_streams_ = &streams; }
  // Takes clients from `listener` (listening, SEQPACKET, non-blocking). Before Run(). Errors as
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
  void Handle(NodeEvent event);
  // Runs one call of this epd's own coordinator, and its effects.
  void WithRendezvous(const std::function<Rendezvous::Effects(Rendezvous&, absl::Time)>& call);

  // Operators' orders. `done` is called once, now or later; the same key again gets the same
  // answer.
  RequestDeduplicator& orders() { return orders_; }

  // Runs `then` once all workers' figures are fresh, or after a short wait for one that does not
  // answer.
  void WithFreshFigures(std::function<void()> then);
  // Runs `done` with the last operations of the groups' ranks here; without what their workers do
  // not say soon.
  void AskForPast(const std::vector<GroupId>& groups, uint32_t max_of_rank,
                  PastQuestions::Done done);

  // `watcher` runs at the end of each turn in which control handled events.
  void SetWatcher(std::function<void()> watcher) {
    role_.AssertHeld();
    watcher_ = std::move(watcher);
  }

  const ParsedSettings& parsed() const { return parsed_; }
  const Settings& settings() const { return parsed_.settings; }
  const NodeControl& control() const { return control_; }
  const Rendezvous& rendezvous() const { return *rendezvous_; }
  const WorkerTable::Map& workers() const { return workers_.all(); }
  // The CPU's worker.
  const WorkerSupervisor& worker() const { return workers_.Find(kCpuWorker)->supervisor; }
  const AttachServer& clients() const { return clients_; }
  const NodeId& id() const { return self_; }
  const std::string& host() const { return host_; }
  const std::string& version() const { return version_; }
  absl::Time started() const { return started_; }
  bool stopping() const { return stopping_; }
  bool coordinates() const { return link_ == nullptr; }

  // ---- with --rendezvous: who coordinates changes ----
  // This node coordinates from now on, with a coordinator that knows nothing yet.
  void Lead(const Leading& how);
  // ... and no more; reports go to `link`.
  void StopLeading(CoordinatorLink& link, const absl::Status& why);
  // For operators: who coordinates, or why nobody does; what is wrong with the store, or "".
  void SetLeader(std::string leader, std::string why_none);
  void SetStoreProblem(std::string problem) { store_problem_ = std::move(problem); }
  // Asks every node of the cluster, through whoever coordinates.
  void AskNodes(const v1::AskNodesRequest& request, OnAsked done) {
    if (link_ != nullptr) return link_->Ask(request, std::move(done));
    own_streams_->Ask(request, std::move(done));
  }
  const std::string& leader() const { return leader_; }
  const std::string& why_no_leader() const { return why_no_leader_; }
  const std::string& store_problem() const { return store_problem_; }
  SpecDefaults spec_defaults() const;
  // After which a silent peer, node or coordinator, counts as lost.
  absl::Duration node_silence() const;
  const ClientGateway::Words* WordsOf(SessionId session, const std::string& group,
                                      Rank rank) const {
    return client_gateway_.WordsOf(session, group, rank);
  }

 private:
  // Work that waits for snapshots of the workers.
  struct Waiting {
    absl::Time asked;
    absl::Time until;
    std::function<void()> then;
  };

  NodeOptions ControlOptions() const;
  RendezvousOptions CoordinatorOptions() const;
  WorkerSupervisor::Options WorkerOptions(const WorkerName& name) const;
  ServedGpus Gpus() const;
  AttachServer::Options ClientOptions() const;
  EffectSender::Targets Targets();
  absl::Status CheckRoom(const std::string& group) const;
  std::string DescribeGroup(GroupId group) const;
  bool OwesFigures(absl::Time since) const;

  void FollowOwn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void KeepPersistent() ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void Turn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void DrainEvents() ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void SendReportOut(const NodeReport& report);
  void SendViewOut(const ClusterView& view);
  void AnswerWaiting(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void CheckIdle(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  absl::Time NextDeadline() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);

  const ParsedSettings& parsed_;
  const std::string version_;
  const std::string host_;
  const NodeId self_;
  const uint64_t incarnation_;
  const absl::Time started_;
  ThreadRole role_;

  EventLoop loop_;
  RequestDeduplicator orders_;
  NodeControl control_;
  std::unique_ptr<Rendezvous> rendezvous_;
  WorkerTable workers_;
  PastQuestions past_;
  ClientGateway client_gateway_;
  AttachServer clients_;
  EffectSender effects_;

  Leading leading_ ABSL_GUARDED_BY(role_);
  std::string leader_;
  std::string why_no_leader_;
  std::string store_problem_;
  CoordinatorLink* link_ = nullptr;
  ClusterStreams* streams_ = nullptr;
  ClusterStreams* own_streams_ = nullptr;
  std::deque<NodeEvent> events_ ABSL_GUARDED_BY(role_);
  bool changed_ ABSL_GUARDED_BY(role_) = false;
  std::function<void()> watcher_ ABSL_GUARDED_BY(role_);
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(role_);
  std::function<void()> on_stopping_ ABSL_GUARDED_BY(role_);
  absl::Time idle_since_ ABSL_GUARDED_BY(role_);
  bool stopping_ = false;
  bool hurry_ ABSL_GUARDED_BY(role_) = false;
  bool done_ ABSL_GUARDED_BY(role_) = false;
};

}  // namespace epd
