// A coordinator and some nodes whose messages arrive at once and in order, for tests of what groups
// do. Workers answer by themselves unless told otherwise; everything that sessions are told is
// kept.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "daemon/control/node_control.h"
#include "daemon/control/rendezvous.h"

namespace epd {

inline GroupSpec SmallSpec(uint32_t num_ranks, const std::string& name = "moe") {
  GroupSpec spec;
  spec.name = name;
  spec.num_ranks = num_ranks;
  spec.num_experts = 2 * num_ranks;
  spec.max_tokens_per_rank = 8;
  spec.recv_capacity_per_rank = 64;
  spec.hidden = 16;
  spec.max_token_dtype = Dtype::kFloat32;
  spec.backend = "cpu";
  return spec;
}

class SmallCluster {
 public:
  struct OneNode {
    std::unique_ptr<NodeControl> control;
    Incarnation incarnation;
    Incarnation worker;            // The CPU's.
    Incarnation gpu_worker;        // Of cuda:0.
    Incarnation other_gpu_worker;  // Of cuda:1.
    bool has_nccl = true;
    std::string nccl_version;
    bool worker_answers = true;
    std::vector<StartTenant> started;
    std::vector<EndTenant> ended;
    std::vector<GroupId> dropped;
    std::vector<InitCommunicator> inits;
    std::vector<WorkerName> id_makers;
    int num_drains = 0;
    int num_drains_in_order = 0;
    std::vector<GroupTransition> transitions;
    std::vector<RankContested> contested;
  };

  explicit SmallCluster(size_t num_nodes, const std::vector<NodeFacts>& facts = {}) {
    StartCoordinator(absl::ZeroDuration());
    nodes.resize(num_nodes);
    for (size_t i = 0; i < num_nodes; ++i) {
      nodes[i].incarnation = Incarnation{100 + i};
      NodeOptions options;
      options.node = NodeId{absl::StrCat("n", i)};
      options.incarnation = nodes[i].incarnation;
      options.workers = {kCpuWorker, kGpuWorker, kOtherGpuWorker};
      if (i < facts.size()) options.facts = facts[i];
      if (i < facts.size()) nodes[i].nccl_version = facts[i].nccl_version;
      nodes[i].control = std::make_unique<NodeControl>(options);
      StartWorker(i);
      StartWorker(i, kGpuWorker);
      StartWorker(i, kOtherGpuWorker);
      Connect(i);
    }
  }

  void StartCoordinator(absl::Duration grace) {
    RendezvousOptions options;
    options.incarnation = Incarnation{++next_incarnation_};
    options.start_grace = grace;
    options.started_at = now;
    options.persistent = persistent;
    options.keeps_persistent = keeps_persistent;
    coordinator = std::make_unique<Rendezvous>(options);
  }

  void Connect(size_t i) {
    const auto hello =
        coordinator->ConnectNode(now, nodes[i].control->options().node, nodes[i].incarnation);
    Give(i, CoordinatorConnected{coordinator->incarnation()});
    Perform(hello);
  }

  static constexpr WorkerName kGpuWorker{0};
  static constexpr WorkerName kOtherGpuWorker{1};

  Incarnation& RunOf(size_t i, const WorkerName& name) {
    if (!name.on_gpu()) return nodes[i].worker;
    return name == kGpuWorker ? nodes[i].gpu_worker : nodes[i].other_gpu_worker;
  }

  void StartWorker(size_t i, const WorkerName& name = kCpuWorker) {
    RunOf(i, name) = Incarnation{++next_incarnation_};
    Give(i, WorkerStarted{{name, RunOf(i, name), nodes[i].has_nccl,
                           nodes[i].has_nccl ? "" : "no libnccl.so.2", nodes[i].nccl_version}});
  }

  void KillWorker(size_t i, const WorkerName& name = kCpuWorker) {
    Give(i, WorkerDied{RunOf(i, name), absl::InternalError("signal 9"), name});
  }

  // Attaches a session of a process with pid = session.
  void Attach(size_t i, uint64_t session) {
    Give(i, SessionAttached{SessionId{session}, static_cast<int32_t>(session), 0,
                            absl::StrCat("host", i), "test", "0.1.0"});
  }

  void Join(size_t i, uint64_t session, uint64_t request, const GroupSpec& spec,
            std::vector<uint32_t> ranks, absl::Duration timeout = absl::Minutes(1)) {
    const WorkerName worker = spec.backend == "cuda" ? kGpuWorker : kCpuWorker;
    JoinAt(i, session, request, spec, std::move(ranks), {worker}, timeout);
  }

  // `workers`: of each rank, or one for all.
  void JoinAt(size_t i, uint64_t session, uint64_t request, const GroupSpec& spec,
              std::vector<uint32_t> ranks, const std::vector<WorkerName>& workers,
              absl::Duration timeout = absl::Minutes(1)) {
    std::vector<Rank> typed;
    for (const uint32_t r : ranks) typed.push_back(Rank{r});
    Give(i, JoinRequested{SessionId{session}, RequestId{request}, spec, typed, Epoch{},
                          now + timeout, GroupId{++next_incarnation_}, workers});
  }

  void AttachAndJoin(size_t i, uint64_t session, const GroupSpec& spec,
                     std::vector<uint32_t> ranks) {
    Attach(i, session);
    Join(i, session, 1, spec, std::move(ranks));
  }

  void Drained(size_t i, uint64_t session, std::vector<ExecutionCount> counts = {}) {
    const ReplyJoined& last = joined[session].back();
    Give(i, SessionDrained{SessionId{session}, last.group, last.formation, std::move(counts)});
  }

  void Gone(size_t i, uint64_t session) {
    Give(i, SessionGone{SessionId{session}, absl::UnavailableError("socket closed")});
  }

  // Lets time pass, with every deadline on its way.
  void Pass(absl::Duration time) {
    const absl::Time until = now + time;
    for (;;) {
      absl::Time next = coordinator->NextDeadline();
      for (const OneNode& node : nodes) next = std::min(next, node.control->NextDeadline());
      if (next > until) break;
      now = std::max(now, next);
      Perform(coordinator->Tick(now));
      for (size_t i = 0; i < nodes.size(); ++i) Give(i, Tick{});
    }
    now = until;
  }

  void Give(size_t i, NodeEvent event) {
    queue_.emplace_back(i, std::move(event));
    if (busy_) return;
    busy_ = true;
    while (!queue_.empty()) {
      const auto [to, next] = std::move(queue_.front());
      queue_.pop_front();
      for (const NodeEffect& effect : nodes[to].control->Handle(now, next)) Run(to, effect);
    }
    busy_ = false;
  }

  void Perform(Rendezvous::Effects effects) {
    for (RendezvousEffect& effect : effects) {
      if (auto* send = std::get_if<SendView>(&effect)) {
        ++num_views;
        for (const GroupView& group : send->view.groups) num_members += group.members.size();
        const size_t to = std::stoul(send->view.node.value.substr(1));
        if (cut_off.count(to) == 0) Give(to, ViewReceived{std::move(send->view)});
      } else {
        transitions.push_back(std::get<GroupTransition>(effect));
      }
    }
  }

  GroupStatus Group() const { return coordinator->Groups().at(0); }

  absl::Time now = absl::FromUnixSeconds(1000);
  std::unique_ptr<Rendezvous> coordinator;
  std::vector<OneNode> nodes;
  std::vector<GroupTransition> transitions;
  // By session.
  std::map<uint64_t, std::vector<ReplyJoined>> joined;
  std::map<uint64_t, std::vector<absl::Status>> failed;
  std::map<uint64_t, std::vector<NotifyReform>> reforms;
  std::map<uint64_t, std::vector<absl::Status>> draining;
  std::map<uint64_t, std::vector<absl::Status>> group_ended;
  std::map<uint64_t, std::vector<absl::Status>> left;
  std::set<uint64_t> told_to_end;
  std::map<uint64_t, std::vector<RpcDone>> rpcs;  // By request.
  bool shutdown_done = false;
  NodeReport last_report;
  bool an_id_was_reported = false;
  bool hold_reports = false;  // Nothing reaches the coordinator.
  std::vector<NodeReport> held_reports;
  std::set<size_t> cut_off;                 // Nodes that no view reaches.
  std::vector<PersistentGroup> persistent;  // What the next coordinator is told.
  bool keeps_persistent = false;            // ... that somebody keeps what operators make.
  std::set<WorkerName> silent;              // Of all nodes: say not that a tenant is ready.
  std::string replayed_id;                  // Not empty: workers make this id, always.
  absl::Status id_status;                   // Of what workers make.
  bool keep_members = true;                 // In `started` and `joined`.
  size_t num_views = 0;
  size_t num_members = 0;  // In all views.
  size_t num_reports = 0;

 private:
  void Run(size_t i, const NodeEffect& effect) {
    OneNode& node = nodes[i];
    if (const auto* e = std::get_if<SendReport>(&effect)) {
      ++num_reports;
      last_report = e->report;
      for (const GroupWork& work : last_report.work) an_id_was_reported |= !work.id.empty();
      if (hold_reports) {
        held_reports.push_back(e->report);
      } else {
        Perform(coordinator->TakeReport(now, e->report));
      }
    } else if (const auto* e = std::get_if<StartTenant>(&effect)) {
      node.started.push_back(*e);
      if (!keep_members) node.started.back().members = std::vector<RankHolder>();
      if (node.worker_answers && silent.count(e->to) == 0)
        Give(i, TenantReady{RunOf(i, e->to), e->group, e->formation});
    } else if (const auto* e = std::get_if<EndTenant>(&effect)) {
      node.ended.push_back(*e);
    } else if (const auto* e = std::get_if<ForgetArenas>(&effect)) {
      node.dropped.push_back(e->group);
    } else if (const auto* e = std::get_if<DrainTenant>(&effect)) {
      ++node.num_drains;
      node.num_drains_in_order += e->in_order ? 1 : 0;
      if (node.worker_answers) Give(i, TenantDrained{RunOf(i, e->to), e->group, e->formation});
    } else if (const auto* e = std::get_if<MakeUniqueId>(&effect)) {
      node.id_makers.push_back(e->to);
      const std::string id =
          replayed_id.empty() ? absl::StrCat("id", ++next_incarnation_) : replayed_id;
      Give(i, UniqueIdMade{RunOf(i, e->to), e->group, e->epoch, id_status,
                           id_status.ok() ? UniqueId(id) : UniqueId()});
    } else if (const auto* e = std::get_if<InitCommunicator>(&effect)) {
      node.inits.push_back(*e);
      Give(i, CommunicatorInitialised{RunOf(i, e->to), e->group, e->epoch, absl::OkStatus(),
                                      e->id.bytes()});
    } else if (const auto* e = std::get_if<ReplyJoined>(&effect)) {
      joined[e->session.value].push_back(*e);
      if (!keep_members) joined[e->session.value].back().members = std::vector<RankHolder>();
    } else if (const auto* e = std::get_if<ReplyFailed>(&effect)) {
      failed[e->session.value].push_back(e->status);
    } else if (const auto* e = std::get_if<ReplyLeft>(&effect)) {
      left[e->session.value].push_back(e->status);
    } else if (const auto* e = std::get_if<NotifyReform>(&effect)) {
      reforms[e->session.value].push_back(*e);
    } else if (const auto* e = std::get_if<NotifyDraining>(&effect)) {
      draining[e->session.value].push_back(e->cause);
    } else if (const auto* e = std::get_if<NotifyGroupEnded>(&effect)) {
      group_ended[e->session.value].push_back(e->status);
    } else if (const auto* e = std::get_if<EndSession>(&effect)) {
      told_to_end.insert(e->session.value);
    } else if (const auto* e = std::get_if<RpcDone>(&effect)) {
      rpcs[e->request.value].push_back(*e);
    } else if (std::holds_alternative<ShutdownDone>(effect)) {
      shutdown_done = true;
    } else if (const auto* e = std::get_if<GroupTransition>(&effect)) {
      node.transitions.push_back(*e);
    } else if (const auto* rival = std::get_if<RankContested>(&effect)) {
      node.contested.push_back(*rival);
    }
  }

  std::deque<std::pair<size_t, NodeEvent>> queue_;
  bool busy_ = false;
  uint64_t next_incarnation_ = 1000;
};

// Two sessions, one on each node, in one READY group.
struct Pair : SmallCluster {
  Pair() : SmallCluster(2) {
    AttachAndJoin(0, 1, SmallSpec(2), {0});
    AttachAndJoin(1, 2, SmallSpec(2), {1});
  }
};

// The worker of node 0 cannot reach that of node 1.
inline void Break(SmallCluster& c, const WorkerName& worker = kCpuWorker) {
  const GroupStatus group = c.Group();
  c.Give(0, TenantBroken{c.RunOf(0, worker), group.id, group.formation,
                         absl::UnavailableError("the stream to node n1 is lost")});
  c.Drained(0, 1);
  c.Drained(1, 2);
  if (c.joined.contains(3)) c.Drained(0, 3);
}

}  // namespace epd
