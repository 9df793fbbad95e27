// Nodes, the coordinator, and the network between them: streams break, messages are late, overtaken
// and repeated.
#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/core/running_time.h"
#include "tests/sim/world.h"

namespace epd::sim {

void World::StartNode(size_t i) {
  Node& node = nodes_[i];
  node.incarnation = Fresh();
  node.newest_view = 0;
  node.newest_report = 0;
  NodeOptions options;
  options.node = NodeId{node.name};
  options.incarnation = Incarnation{node.incarnation};
  options.workers = {kCpuWorker, WorkerName{0}, WorkerName{1}};
  node.control = std::make_unique<NodeControl>(options);
  Log(absl::StrCat(node.name, " starts"));
  StartWorkers(i);
  At(Delay(500), [this, i] { Connect(i); });
}

void World::CrashNode(size_t i) {
  Node& node = nodes_[i];
  if (node.control == nullptr) return;
  Log(absl::StrCat(node.name, " crashes"));
  if (node.connection != 0) Disconnect(i);
  invariants_.SawNodeEnd(node.name, node.incarnation);
  node.control.reset();
  for (size_t c = 0; c < clients_.size(); ++c) {
    Client& client = clients_[c];
    if (client.node != i || client.node_incarnation != node.incarnation) continue;
    if (data_ != nullptr && client.alive) TouchClient(c);
    if (data_ != nullptr) data_->EndSession({}, client.session, /*process_alive=*/false);
    client.alive = false;
  }
  node.sessions.clear();
  for (auto& [name, worker] : node.workers) {  // They exit with their epd.
    if (data_ != nullptr) TouchWorker(WorkerIndex(i, name));
    if (data_ != nullptr)
      data_->KillWorker(WorkerIndex(i, name), absl::UnavailableError("epd is gone"));
    worker = Worker{};
    worker.died_at = now_;
  }
  At(Delay(8000), [this, i] {
    if (nodes_[i].control == nullptr) StartNode(i);
  });
}

void World::StartCoordinator() {
  RendezvousOptions options;
  options.incarnation = Incarnation{Fresh()};
  options.node_silence = absl::Seconds(5);
  options.start_grace = absl::Seconds(3);
  options.started_at = CoordinatorNow();
  coordinator_ = std::make_unique<Rendezvous>(options);
  for (Node& node : nodes_) node.newest_report = 0;
  Log("coordinator starts");
}

void World::CrashCoordinator() {
  if (coordinator_ == nullptr) return;
  Log("coordinator crashes");
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].connection != 0) Disconnect(i);
  }
  coordinator_.reset();
  stopped_until_ = absl::InfinitePast();
  At(Delay(6000), [this] {
    if (coordinator_ == nullptr) StartCoordinator();
  });
}

std::set<NodeId> World::LostNodes() const {
  std::set<NodeId> lost;
  for (const NodeStatus& node : coordinator_->Nodes()) {
    if (node.lost) lost.insert(node.node);
  }
  return lost;
}

// Its clock and all that is sent to it stand still; then it finds both at once.
void World::StopCoordinator() {
  if (coordinator_ == nullptr || CoordinatorStopped()) return;
  const absl::Duration length = Delay(20000);
  stopped_until_ = now_ + length;
  Log("coordinator is stopped");
  // What is shorter does not show: a node may have been silent for long enough.
  const bool shows = length > absl::Seconds(2);
  At(length, [this, shows, run = coordinator_->incarnation(), before = LostNodes()] {
    if (coordinator_ == nullptr || coordinator_->incarnation() != run) return;
    Log("coordinator goes on");
    PerformAll(coordinator_->Tick(CoordinatorNow()));
    if (shows && LostNodes() != before) invariants_.Fail("hears_first", "it lost a node at once");
  });
}

// Those that have time left, and all that wait for the same group: the first one's deadline is the group's, and who hears later that
// it has passed hears of that one.
void World::NotePatientJoins() {
  constexpr absl::Duration kPatient = absl::Seconds(3);
  std::set<std::string> urgent = std::exchange(overdue_, {});
  patient_.clear();
  for (const bool notes_urgent : {true, false}) {
    for (const Client& client : clients_) {
      const Node& node = nodes_[client.node];
      // Without a deadline it does not know of the Join yet, and its time goes on.
      const bool knows =
          node.control != nullptr && node.control->NextDeadline() != absl::InfiniteFuture();
      for (const auto& [request, deadline] : client.join_deadlines) {
        const auto joining = client.joining.find(request);
        if (joining == client.joining.end()) continue;
        if (urgent.count(joining->second.first) > 0) overdue_.insert(joining->second.first);
        const bool waits = knows && deadline - NodeNow(client.node) > kPatient;
        if (notes_urgent && !waits) urgent.insert(joining->second.first);
        if (!notes_urgent && waits && urgent.count(joining->second.first) == 0)
          patient_.insert({client.session, request});
      }
    }
  }
}

// As a freezer does, or a machine that is suspended with all that is on it: the clock goes on, and each time stands still by the
// rule that epd's loops follow (RunningTime). What is under way to somebody is found at once afterwards.
void World::FreezeAll() {
  if (CoordinatorStopped()) return;
  const absl::Duration length = Delay(40000);
  const auto lost = [&](absl::Time now, absl::Time deadline) {
    if (options_.bug == Bug::kClockRunsOn) return absl::ZeroDuration();
    RunningTime time;
    time.Look(now);
    time.Sleeps(RunningTime::Nap(std::max(deadline - now, absl::ZeroDuration())));
    return time.Look(now + length);
  };
  Log(absl::StrCat("all are frozen for ", absl::FormatDuration(length)));
  NotePatientJoins();
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].control != nullptr)
      nodes_[i].behind += lost(NodeNow(i), nodes_[i].control->NextDeadline());
  }
  std::set<NodeId> lost_before;
  if (coordinator_ != nullptr) {
    lost_before = LostNodes();
    coordinator_behind_ += lost(CoordinatorNow(), coordinator_->NextDeadline());
  }
  now_ += length;
  thawed_at_ = now_;
  // Invariants remember what has happened for a time in which everybody could have heard of it.
  for (Client& client : clients_) client.left_at += length;
  for (Node& node : nodes_) {
    node.cut_off_at += length;
    for (auto& [name, worker] : node.workers) worker.died_at += length;
  }
  At(absl::Seconds(1), [this, lost_before, thawed = thawed_at_] {
    patient_.clear();
    if (thawed == thawed_at_ && !NodesAreAsBefore(lost_before))
      invariants_.Fail("frozen_together", "the coordinator lost a node for the time of a freeze");
  });
}

// Whether no node is lost that was there all the time.
bool World::NodesAreAsBefore(const std::set<NodeId>& lost_before) const {
  if (coordinator_ == nullptr) return true;
  const std::set<NodeId> lost = LostNodes();
  return std::all_of(lost.begin(), lost.end(), [&](const NodeId& id) {
    const Node& node = nodes_[IndexOf(id)];
    return lost_before.count(id) > 0 || node.control == nullptr || node.connection == 0 ||
           node.cut_off_at + absl::Seconds(10) > thawed_at_;
  });
}

void World::Connect(size_t i) {
  Node& node = nodes_[i];
  if (node.connection != 0 || node.control == nullptr) return;
  if (coordinator_ == nullptr || CoordinatorStopped()) {
    At(Delay(1000), [this, i] { Connect(i); });
    return;
  }
  node.connection = next_connection_++;
  node.cut_off_at = now_;
  node.newest_view = 0;
  Log(absl::StrCat(node.name, " connects"));
  const Rendezvous::Effects hello =
      coordinator_->ConnectNode(CoordinatorNow(), NodeId{node.name}, Incarnation{node.incarnation});
  Give(i, CoordinatorConnected{coordinator_->incarnation()});
  PerformAll(hello);
}

// The stream breaks; both ends notice, the node tries again.
void World::Disconnect(size_t i) {
  Node& node = nodes_[i];
  if (node.connection == 0) return;
  Log(absl::StrCat(node.name, " is cut off"));
  node.connection = 0;
  node.cut_off_at = now_;
  for (size_t c = 0; data_ != nullptr && c < clients_.size(); ++c) {
    if (clients_[c].node == i && Lives(c)) TouchClient(c);
  }
  Give(i, CoordinatorLost{absl::UnavailableError("stream broke")});
  At(Delay(faults_ && rng_.Chance(30) ? 9000 : 1000), [this, i] { Connect(i); });
}

size_t World::Give(size_t i, const NodeEvent& event) {
  if (nodes_[i].control == nullptr) return 0;
  size_t num = 0;
  for (const NodeEffect& effect : nodes_[i].control->Handle(NodeNow(i), event)) {
    if (!std::holds_alternative<SendReport>(effect)) ++num;
    Perform(i, effect);
  }
  return num;
}

size_t World::IndexOf(const NodeId& id) const {
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].name == id.value) return i;
  }
  return 0;
}

void World::PerformAll(const Rendezvous::Effects& effects) {
  for (const RendezvousEffect& effect : effects) {
    if (const auto* send = std::get_if<SendView>(&effect)) {
      SendToNode(send->view);
      continue;
    }
    const auto& t = std::get<GroupTransition>(effect);
    CheckUnharmed(t);
    Log(absl::StrCat("  group ", t.name, " ", t.group.value % 1000, " epoch=", t.epoch.value,
                     " formation=", t.formation.value, " ", std::string(Name(t.from)), " -> ",
                     std::string(Name(t.to)), " (", std::string(Name(t.event)), ") ",
                     t.why.message()));
    if (t.to == GroupState::kClosed)
      invariants_.SawGroupClosed(coordinator_->incarnation(), t.group);
    if (t.to == GroupState::kReady) {
      invariants_.SawGroupReady(coordinator_->incarnation(), t.group, t.formation);
      ++outcome_.num_ready;
      if (t.from == GroupState::kReforming) ++outcome_.num_reformed;
    }
  }
}

// Whether nothing has happened to the member that could be held against its tenant.
bool World::IsSound(const RankHolder& member) const {
  constexpr absl::Duration kMemory = absl::Seconds(30);  // Of whatever was late, lost or repeated.
  const Node& node = nodes_[IndexOf(member.node)];
  if (node.connection == 0 || node.cut_off_at + kMemory > now_) return false;
  for (size_t c = 0; c < clients_.size(); ++c) {
    if (clients_[c].session != member.session) continue;
    return Lives(c) && clients_[c].left_at + kMemory < now_;
  }
  return false;
}

void World::CheckUnharmed(const GroupTransition& t) {
  // Else another tenant has begun the epoch.
  const bool died = absl::StrContains(t.why.message(), "is gone");
  if (t.from == GroupState::kReady && t.event == GroupEvent::kWorkerLost && died &&
      WorkersLive(t)) {
    invariants_.Fail("unharmed",
                     absl::StrCat("group ", t.name, " ", t.group.value,
                                  " lost a worker, but its own live: ", t.why.message()));
  }
  const bool lost = t.event == GroupEvent::kRankLost || t.event == GroupEvent::kFail;
  if (t.from != GroupState::kReady || !lost) return;
  const auto members = invariants_.MembersOf(coordinator_->incarnation(), t.group, t.formation);
  const bool sound =
      !members.empty() && std::all_of(members.begin(), members.end(),
                                      [this](const RankHolder& member) { return IsSound(member); });
  if (sound) {
    invariants_.Fail("unharmed",
                     absl::StrCat("group ", t.name, " ", t.group.value,
                                  " lost a rank, but its sessions are well: ", t.why.message()));
  }
}

void World::SendToCoordinator(size_t i, NodeReport report) {
  const uint64_t connection = nodes_[i].connection;
  if (connection == 0 || coordinator_ == nullptr) return;
  if (options_.bug == Bug::kForgetEpochs) {
    report.max_epoch = Epoch{};
    for (Claim& claim : report.claims) claim.min_epoch = Epoch{};
  }
  const bool dead = std::any_of(report.claims.begin(), report.claims.end(),
                                [](const Claim& claim) { return claim.fate == ClaimFate::kGone; });
  for (Claim& claim : report.claims) {
    if (dead && options_.bug == Bug::kSpreadDeath) claim.fate = ClaimFate::kGone;
  }
  if (options_.bug == Bug::kNoDeadline) {
    for (Claim& claim : report.claims) claim.remaining = absl::InfiniteDuration();
  }
  const auto deliver = [this, i, connection, to = coordinator_->incarnation(), report] {
    CarryReport(i, connection, to, report);
  };
  At(Delay(faults_ ? 400 : 50), deliver);
  if (faults_ && rng_.Chance(10)) At(Delay(3000), deliver);
  if (faults_ && rng_.Chance(3)) Disconnect(i);
}

void World::CarryReport(size_t i, uint64_t connection, Incarnation to, const NodeReport& report) {
  // What was on a broken stream is lost, but for the hostile case that it was already read.
  if (coordinator_ == nullptr || coordinator_->incarnation() != to) return;
  if (CoordinatorStopped()) {
    return At(stopped_until_ - now_ + Delay(300),
              [=, this] { CarryReport(i, connection, to, report); });
  }
  if (nodes_[i].connection != connection && !(faults_ && rng_.Chance(30))) return;
  DeliverReport(i, report);
}

void World::DeliverReport(size_t i, const NodeReport& report) {
  Node& node = nodes_[i];
  const bool stale =
      report.incarnation.value != node.incarnation || report.seq <= node.newest_report;
  if (report.incarnation.value == node.incarnation)
    node.newest_report = std::max(node.newest_report, report.seq);
  const Rendezvous::Effects effects = coordinator_->TakeReport(CoordinatorNow(), report);
  // A report of an incarnation that the coordinator does not know to be over is news to it.
  if (stale && report.incarnation.value == node.incarnation) {
    invariants_.SawStaleDelivery("a repeated report", effects.size());
  }
  PerformAll(effects);
}

void World::SendToNode(ClusterView view) {
  const size_t i = IndexOf(view.node);
  const uint64_t connection = nodes_[i].connection;
  if (connection == 0 || (options_.bug == Bug::kLoseLastViews && !faults_ && i == 0)) return;
  if (options_.bug == Bug::kSplitPlacement && i == 0) {
    for (GroupView& group : view.groups) {
      std::vector<RankHolder> members = group.members.items();
      if (!members.empty()) members.back().pid += 1;
      group.members = std::move(members);
    }
  }
  if (options_.bug == Bug::kSplitCommunicator && i == 0) {
    for (GroupView& group : view.groups) {
      if (!group.spec.tenant.empty()) ++group.communicator.value;
    }
  }
  if (options_.bug == Bug::kLastCause && i == 0) {
    for (GroupView& group : view.groups) group.cause = absl::UnavailableError("a rank has left");
  }
  invariants_.SawView(view);
  if (options_.bug == Bug::kSwapId && i == 0) {
    for (GroupView& group : view.groups) {
      if (!group.unique_id.empty()) group.unique_id = UniqueId(std::string(128, 'x'));
    }
  }
  const uint64_t incarnation = nodes_[i].incarnation;
  const auto deliver = [this, i, incarnation, connection, view] {
    if (nodes_[i].connection != connection && !(faults_ && rng_.Chance(30))) return;
    DeliverView(i, incarnation, view);
  };
  At(Delay(faults_ ? 400 : 50), deliver);
  if (faults_ && rng_.Chance(10)) At(Delay(3000), deliver);
  if (faults_ && rng_.Chance(3)) Disconnect(i);
}

void World::DeliverView(size_t i, uint64_t, const ClusterView& view) {
  Node& node = nodes_[i];
  if (node.control == nullptr) return;
  const bool current = view.node_incarnation.value == node.incarnation &&
                       view.coordinator == node.control->coordinator();
  const bool stale = !current || view.seq <= node.newest_view;
  if (stale && options_.bug == Bug::kActOnStaleView && current) {
    ClusterView forged = view;
    forged.seq = node.newest_view + 1;
    node.newest_view = forged.seq;
    invariants_.SawStaleDelivery("an old view", Give(i, ViewReceived{forged}));
    return;
  }
  if (current) node.newest_view = std::max(node.newest_view, view.seq);
  const size_t effects = Give(i, ViewReceived{view});
  if (stale) invariants_.SawStaleDelivery("an old view", effects);
}

Formation World::ServedAsHeard(size_t i, GroupId group) const {
  for (const LocalGroupStatus& local : nodes_[i].control->Groups()) {
    if (local.view.id == group) return local.view.served;
  }
  return Formation();
}

void World::Perform(size_t i, const NodeEffect& effect) {
  const auto name = nodes_[i].name;
  const auto who = [&](SessionId session) {
    return Who{name, nodes_[i].incarnation, session.value};
  };
  if (const auto* e = std::get_if<SendReport>(&effect)) {
    SendToCoordinator(i, e->report);
  } else if (const auto* e = std::get_if<StartTenant>(&effect)) {
    StartTenant start = *e;
    const WorkerName other{1 - start.to.cuda_device};  // cuda:0 and cuda:1; nobody for the CPU's.
    if (options_.bug == Bug::kCrossWorkers && nodes_[i].workers[other].pool != nullptr)
      start.to = other;
    if (options_.bug == Bug::kWrongBase && !start.bases.empty()) {
      std::vector<ExecutionBase> bases = start.bases.items();
      ++bases.front().base;
      start.bases = std::move(bases);
    }
    invariants_.SawStartTenant(name, nodes_[i].incarnation, nodes_[i].workers[start.to].incarnation,
                               start);
    ToWorker(i, start);
  } else if (const auto* e = std::get_if<EndTenant>(&effect)) {
    ToWorker(i, *e);
  } else if (const auto* e = std::get_if<DrainTenant>(&effect)) {
    ToWorker(i, *e);
  } else if (const auto* e = std::get_if<MakeUniqueId>(&effect)) {
    ToWorker(i, *e);
  } else if (const auto* e = std::get_if<InitCommunicator>(&effect)) {
    invariants_.SawInit(*e);
    ToWorker(i, *e);
  } else if (const auto* e = std::get_if<ReplyJoined>(&effect)) {
    invariants_.SawJoined(who(e->session), *e);
    const bool swallow = options_.bug == Bug::kSwallowAnswer && e->request;
    if (e->request && !swallow) invariants_.SawJoinAnswered(who(e->session), e->request);
    if (e->request && options_.bug == Bug::kAnswerTwice)
      invariants_.SawJoinAnswered(who(e->session), e->request);
    std::vector<Rank> ranks;
    for (const RankHolder& member : e->members) {
      if (member.node.value == name && member.session == e->session) ranks.push_back(member.rank);
    }
    FromNode(i, e->session, [this, joined = *e, ranks](size_t c) { OnJoined(c, joined, ranks); });
  } else if (const auto* e = std::get_if<ReplyFailed>(&effect)) {
    Log(absl::StrCat("  ", name, " session ", e->session.value,
                     " join failed: ", e->status.ToString()));
    ++outcome_.num_failed_joins;
    if (absl::IsDeadlineExceeded(e->status)) {
      if (patient_.count({e->session, e->request}) > 0)
        invariants_.Fail("frozen_together", "a join failed for the time of a freeze");
      const Client& client = clients_[e->session.value - 1];
      if (const auto joining = client.joining.find(e->request); joining != client.joining.end())
        overdue_.insert(joining->second.first);
    }
    // Who waits too short a time leaves, perhaps a group that has become READY meanwhile.
    if (absl::StrContains(e->status.message(), "the coordinator has not said why"))
      clients_[e->session.value - 1].left_at = now_;
    if (data_ != nullptr) TouchClient(e->session.value - 1);
    invariants_.SawJoinAnswered(who(e->session), e->request);
    FromNode(i, e->session,
             [this, request = e->request](size_t c) { clients_[c].joining.erase(request); });
    clients_[e->session.value - 1].join_deadlines.erase(e->request);
  } else if (const auto* e = std::get_if<NotifyReform>(&effect)) {
    invariants_.SawReform(nodes_[i].name, nodes_[i].incarnation, *e, ServedAsHeard(i, e->group));
    FromNode(i, e->session, [this, reform = *e](size_t c) { OnReform(c, reform); });
  } else if (const auto* e = std::get_if<NotifyGroupEnded>(&effect)) {
    FromNode(i, e->session, [this, group = e->group](size_t c) { clients_[c].parts.erase(group); });
  } else if (const auto* e = std::get_if<EndSession>(&effect)) {
    FromNode(i, e->session, [this](size_t c) { Crash(c); });
  } else if (const auto* e = std::get_if<RpcDone>(&effect)) {
    invariants_.SawOrderAnswered(name, nodes_[i].incarnation, e->request);
  }
}

}  // namespace epd::sim
