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
    Incarnation worker;
    bool has_nccl = true;
    bool worker_answers = true;
    std::vector<StartTenant> started;
    std::vector<EndTenant> ended;
    std::vector<InitCommunicator> inits;
    int num_drains = 0;
  };

  explicit SmallCluster(size_t num_nodes) {
    StartCoordinator(absl::ZeroDuration());
    nodes.resize(num_nodes);
    for (size_t i = 0; i < num_nodes; ++i) {
      nodes[i].incarnation = Incarnation{100 + i};
      NodeOptions options;
      options.node = NodeId{absl::StrCat("n", i)};
      options.incarnation = nodes[i].incarnation;
      nodes[i].control = std::make_unique<NodeControl>(options);
      StartWorker(i);
      Connect(i);
    }
  }

  void StartCoordinator(absl::Duration grace) {
    RendezvousOptions options;
    options.incarnation = Incarnation{++next_incarnation_};
    options.start_grace = grace;
    options.started_at = now;
    coordinator = std::make_unique<Rendezvous>(options);
  }

  void Connect(size_t i) {
    const auto hello =
        coordinator->OnNodeConnected(now, nodes[i].control->options().node, nodes[i].incarnation);
    Give(i, CoordinatorConnected{coordinator->incarnation()});
    Perform(hello);
  }

  void StartWorker(size_t i) {
    nodes[i].worker = Incarnation{++next_incarnation_};
    Give(i, WorkerStarted{nodes[i].worker, nodes[i].has_nccl,
                          nodes[i].has_nccl ? "" : "no libnccl.so.2"});
  }

  void KillWorker(size_t i) {
    Give(i, WorkerDied{nodes[i].worker, absl::InternalError("signal 9")});
  }

  // Attaches a session of a process with pid = session.
  void Attach(size_t i, uint64_t session) {
    Give(i, SessionAttached{SessionId{session}, static_cast<int32_t>(session), 0,
                            absl::StrCat("host", i), "test"});
  }

  void Join(size_t i, uint64_t session, uint64_t request, const GroupSpec& spec,
            std::vector<uint32_t> ranks, absl::Duration timeout = absl::Minutes(1)) {
    std::vector<Rank> typed;
    for (const uint32_t r : ranks) typed.push_back(Rank{r});
    Give(i, JoinRequested{SessionId{session}, RequestId{request}, spec, typed, Epoch{},
                          now + timeout, GroupId{++next_incarnation_}});
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
      Perform(coordinator->OnTick(now));
      for (size_t i = 0; i < nodes.size(); ++i) Give(i, Tick{});
    }
    now = until;
  }

  void Give(size_t i, const NodeEvent& event) {
    queue_.emplace_back(i, event);
    if (busy_) return;
    busy_ = true;
    while (!queue_.empty()) {
      const auto [to, next] = queue_.front();
      queue_.pop_front();
      for (const NodeEffect& effect : nodes[to].control->Handle(now, next)) Run(to, effect);
    }
    busy_ = false;
  }

  void Perform(const Rendezvous::Effects& effects) {
    for (const RendezvousEffect& effect : effects) {
      if (const auto* send = std::get_if<SendView>(&effect)) {
        Give(static_cast<size_t>(send->view.node.value[1] - '0'), ViewReceived{send->view});
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
  std::map<uint64_t, std::vector<absl::Status>> group_ended;
  std::map<uint64_t, std::vector<absl::Status>> left;
  std::set<uint64_t> told_to_end;
  std::map<uint64_t, std::vector<RpcDone>> rpcs;  // By request.
  bool shutdown_done = false;

 private:
  void Run(size_t i, const NodeEffect& effect) {
    OneNode& node = nodes[i];
    if (const auto* e = std::get_if<SendReport>(&effect)) {
      Perform(coordinator->OnReport(now, e->report));
    } else if (const auto* e = std::get_if<StartTenant>(&effect)) {
      node.started.push_back(*e);
      if (node.worker_answers) Give(i, TenantReady{node.worker, e->group, e->formation});
    } else if (const auto* e = std::get_if<EndTenant>(&effect)) {
      node.ended.push_back(*e);
    } else if (const auto* e = std::get_if<DrainTenant>(&effect)) {
      ++node.num_drains;
      if (node.worker_answers) Give(i, TenantDrained{node.worker, e->group, e->formation});
    } else if (const auto* e = std::get_if<MakeUniqueId>(&effect)) {
      Give(i, UniqueIdMade{node.worker, e->group, e->epoch, absl::OkStatus(),
                           UniqueId(absl::StrCat("id", ++next_incarnation_))});
    } else if (const auto* e = std::get_if<InitCommunicator>(&effect)) {
      node.inits.push_back(*e);
      Give(i, CommunicatorInitialised{node.worker, e->group, e->epoch, absl::OkStatus(),
                                      e->id.bytes()});
    } else if (const auto* e = std::get_if<ReplyJoined>(&effect)) {
      joined[e->session.value].push_back(*e);
    } else if (const auto* e = std::get_if<ReplyFailed>(&effect)) {
      failed[e->session.value].push_back(e->status);
    } else if (const auto* e = std::get_if<ReplyLeft>(&effect)) {
      left[e->session.value].push_back(e->status);
    } else if (const auto* e = std::get_if<NotifyReform>(&effect)) {
      reforms[e->session.value].push_back(*e);
    } else if (const auto* e = std::get_if<NotifyGroupEnded>(&effect)) {
      group_ended[e->session.value].push_back(e->status);
    } else if (const auto* e = std::get_if<EndSession>(&effect)) {
      told_to_end.insert(e->session.value);
    } else if (const auto* e = std::get_if<RpcDone>(&effect)) {
      rpcs[e->request.value].push_back(*e);
    } else if (std::holds_alternative<ShutdownDone>(effect)) {
      shutdown_done = true;
    }
  }

  std::deque<std::pair<size_t, NodeEvent>> queue_;
  bool busy_ = false;
  uint64_t next_incarnation_ = 1000;
};

}  // namespace epd
