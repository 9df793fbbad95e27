// Ranks that call on the data plane, and what must hold of their calls together with the control plane.
#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/sim/world.h"

namespace epd::sim {
namespace {

constexpr uint64_t kQuota = 12;       // Calls of a formation, unless there are more.
constexpr uint64_t kHealedCalls = 3;  // Once faults have stopped.
constexpr absl::Duration kHealTime = absl::Seconds(60);
constexpr absl::Duration kMemory = absl::Seconds(90);  // Of what calls fail for.
constexpr uint8_t kProgram = 1;

ProgramId IdOf(uint8_t program) {
  ProgramId id{};
  id[0] = program;
  return id;
}

}  // namespace

void World::MakeDataPlane() {
  DataPlane::Edge edge;
  edge.later = [this](absl::Duration at_most, std::function<void()> what) {
    const auto us = static_cast<uint64_t>(at_most / absl::Microseconds(1));
    At(absl::Microseconds(1 + static_cast<int64_t>(rng_.Below(us))), std::move(what));
  };
  edge.at = [this](absl::Time when, std::function<void()> what) {
    At(std::max(when, now_) - now_, std::move(what));
  };
  edge.index_of = [this](const WorkerId& id) { return WorkerIndex(IndexOf(id.node), id.name); };
  const size_t of_node = WorkersOf(0).size();
  edge.tell_epd = [this, of_node](int worker, const NodeEvent& event) {
    const size_t i = static_cast<size_t>(worker) / of_node;
    for (const auto& [name, unused] : nodes_[i].workers) {
      if (WorkerIndex(i, name) == worker) FromEngine(i, name, event);
    }
  };
  edge.evict = [this](SessionId session) {
    const size_t c = session.value - 1;
    At(Delay(50), [this, c] {
      if (Lives(c)) Crash(c);
    });
  };
  edge.ended = [this](const world::Call& call, const absl::Status& status) {
    CallEnded(call, status);
  };
  edge.is_slow = [this](SessionId session) {
    const bool slow = faults_ && rng_.Chance(1);
    if (slow) TouchClient(session.value - 1);
    return slow;
  };
  data_ = std::make_unique<DataPlane>(static_cast<int>(nodes_.size() * of_node), options_.seed,
                                      options_.sabotage, std::move(edge));
  data_->SetTime(now_);
  if (traces()) data_->Trace([this](const std::string& what) { Log(absl::StrCat("    ", what)); });
}

// `events` things are done to the cluster, one after the other while jobs run; steps would be too many to count by.
void World::RunWhole() {
  for (int which = 0; which < NumNames(); which += 2) LaunchJob(which);
  const int every_ms = 3000 / static_cast<int>(1 + nodes_.size() / 8);
  const int num_events = options_.events * static_cast<int>(1 + nodes_.size() / 16);
  for (int i = 0; i < num_events && invariants_.violation().empty(); ++i) {
    const absl::Time until = now_ + Delay(every_ms);
    while (Step(until)) {
    }
    now_ = std::max(now_, until);
    data_->SetTime(now_);
    ActOnWhole();
    CheckStep();
  }
}

void World::ActOnWhole() {
  const std::optional<size_t> client = RandomClient();
  const size_t node = rng_.Below(nodes_.size());
  const uint64_t dice = rng_.Below(100);
  if (dice < 25 || !client.has_value())
    return LaunchJob(static_cast<int>(rng_.Below(static_cast<uint64_t>(NumNames()))));
  if (dice < 45) return Operate(*client);
  if (dice < 50) return JoinSomething(*client);
  if (dice < 53) return NewClient();
  if (dice < 56) return Leave(*client);
  if (dice < 57) return LeaveForGood(*client);
  if (dice < 65) return Crash(*client);
  if (dice < 69) return Order(node);
  if (dice < 75) return CrashWorker(node, RandomWorker());
  if (dice < 79) return StopWorker(node, RandomWorker());
  if (dice < 83) return CutNodes(node, rng_.Below(nodes_.size()));
  if (dice < 86) return CrashNode(node);
  if (dice < 89) return CrashCoordinator();
  if (dice < 91) return StopCoordinator();
  if (dice < 96) return Disconnect(node);
}

// A process for each rank that has none: a job that starts, or a launcher that replaces what it has lost.
void World::LaunchJob(int which) {
  const GroupSpec spec = SpecOf(which, 1, rng_.Chance(30) ? 1 : 0);
  const std::set<Rank> taken = TakenRanks(Title(spec));
  const size_t first = rng_.Below(nodes_.size());
  const size_t of_node = 1 + rng_.Below(2);
  for (uint32_t r = 0; r < spec.num_ranks; ++r) {
    if (taken.contains(Rank(r))) continue;
    const std::optional<size_t> c = Attach((first + r / of_node) % nodes_.size());
    if (c.has_value()) Join(*c, which, spec, {Rank(r)});
  }
}

// What epd's attach server does beside telling control.
void World::SawSession(size_t i, const NodeEvent& event) {
  if (const auto* attached = std::get_if<SessionAttached>(&event)) {
    nodes_[i].sessions.insert(attached->session);
    data_->AddSession(WorkersOf(i), attached->session);
  } else if (const auto* gone = std::get_if<SessionGone>(&event)) {
    nodes_[i].sessions.erase(gone->session);
    const bool left = clients_[gone->session.value - 1].left_for_good;
    if (left) data_->SawLeaver(gone->session);
    const bool process_alive = left || (faults_ && rng_.Chance(30));
    const bool holds = nodes_[i].control->HoldsStaging(gone->session);
    data_->EndSession(WorkersOf(i), gone->session,
                      process_alive && (holds || options_.bug == Bug::kLeaverLingers));
  }
}

// ---- ranks ----

void World::BeginTurns(size_t c, GroupId group) {
  for (auto& [rank, loop] : clients_[c].parts.at(group).loops) {
    if (std::exchange(loop.busy, true)) continue;
    At(Delay(loop.failed_since_heal > 0 ? 500 : 100),
       [this, c, group, rank = rank] { Turn(c, group, rank); });
  }
}

// As client/c/group.h: a call waits, fails at once, or is made.
void World::Turn(size_t c, GroupId group, Rank rank) {
  const auto found = clients_[c].parts.find(group);
  if (!Lives(c) || found == clients_[c].parts.end()) return;
  Part& part = found->second;
  uint64_t& begun = part.begun[{rank, IdOf(kProgram)}];
  part.loops[rank].busy = false;
  if (!part.serving) {
    if (part.wait || part.failed.contains(rank)) return;
    ++begun;  // The peers that got further failed this execution, too.
    part.failed.insert(rank);
    return MaybeDrain(c, group);
  }
  const uint64_t base =
      invariants_.BaseOf(part.coordinator, group, part.formation, rank, IdOf(kProgram));
  const uint64_t quota = quota_.try_emplace({group, part.formation}, kQuota).first->second;
  if (begun >= base + quota) return;
  BeginCall(c, group, rank);
}

void World::BeginCall(size_t c, GroupId group, Rank rank) {
  Part& part = clients_[c].parts.at(group);
  RankLoop& loop = part.loops[rank];
  RankCall call{
      .group = group,
      .formation = part.formation,
      .rank = rank,
      .session = clients_[c].session,
      .program = kProgram,
      .execution = part.begun[{rank, IdOf(kProgram)}]++,
      .base = invariants_.BaseOf(part.coordinator, group, part.formation, rank, IdOf(kProgram))};
  if (call.execution < call.base) ++loop.num_cut;
  call.num_cut = loop.num_cut;
  loop.busy = true;
  part.fresh = false;
  part.open.insert({part.formation, rank});
  data_->Call(call);
}

void World::CallEnded(const world::Call& call, const absl::Status& status) {
  ++(status.ok() ? outcome_.num_good_calls : outcome_.num_failed_calls);
  if (traces()) {
    Log(absl::StrCat("  call ", std::get<3>(call.identity), " of rank ", call.rank, " of ",
                     Title(call.group->spec), " formation ", call.formation, ": ",
                     status.ToString()));
  }
  if (!status.ok()) CheckCause(call, status);
  const size_t c = call.session.value - 1;
  const auto found = clients_[c].parts.find(call.group->id);
  if (!Lives(c) || found == clients_[c].parts.end()) return;
  Part& part = found->second;
  const Rank rank{call.rank};
  if (part.open.erase({Formation(call.formation), rank}) == 0) return;  // It left meanwhile.
  RankLoop& loop = part.loops[rank];
  ++(status.ok() ? loop.good_since_heal : loop.failed_since_heal);
  if (status.ok()) {
    part.failed.erase(rank);
  } else {
    part.failed.insert(rank);
  }
  loop.busy = false;
  // What follows is not done in the middle of the engine's answers.
  At(absl::ZeroDuration(), [this, c, group = call.group->id] {
    if (!Lives(c) || !clients_[c].parts.contains(group)) return;
    MaybeDrain(c, group);
    BeginTurns(c, group);
  });
}

void World::MaybeDrain(size_t c, GroupId group) {
  Part& part = clients_[c].parts.at(group);
  if (part.serving || !part.open.empty()) return;
  part.drained = true;
  SendDrained(c, group);
}

void World::MoreCalls(GroupId group, Formation formation, uint64_t num) {
  quota_.try_emplace({group, formation}, kQuota).first->second += num;
  for (size_t c = 0; c < clients_.size(); ++c) {
    if (Lives(c) && clients_[c].parts.contains(group)) BeginTurns(c, group);
  }
}

// ---- faults ----

// A cable, or a switch: all streams between the workers of two nodes.
void World::CutNodes(size_t a, size_t b) {
  Log(absl::StrCat("workers of ", nodes_[a].name, " and ", nodes_[b].name, " lose each other"));
  for (const int one : WorkersOf(a)) {
    for (const int other : WorkersOf(b)) {
      if (one == other) continue;
      TouchWorker(one);
      TouchWorker(other);
      data_->Cut(one, other);
    }
  }
}

void World::StopWorker(size_t i, const WorkerName& name) {
  const absl::Time until = now_ + Delay(12000);
  Log(absl::StrCat("worker ", ToString(name), " of ", nodes_[i].name, " is stopped"));
  TouchWorker(WorkerIndex(i, name));
  data_->StopWorker(WorkerIndex(i, name), until);
}

void World::TouchClient(size_t c) {
  for (const auto& [group, part] : clients_[c].parts) Touch(part.group_name);
  for (const auto& [request, wish] : clients_[c].joining)
    Touch(wish.first.substr(0, wish.first.find(' ')));
}

void World::TouchWorker(int worker) {
  for (const world::Group& group : data_->engines().groups) {
    if ((!group.ended || IsCalledYet(group)) && group.workers().contains(worker))
      Touch(group.spec.name);
  }
}

// Some rank has not heard yet that the formation has ended, and may call its worker.
bool World::IsCalledYet(const world::Group& group) const {
  return std::any_of(clients_.begin(), clients_.end(), [&](const Client& client) {
    const auto part = client.parts.find(GroupId(group.id));
    return client.alive && part != client.parts.end() && part->second.serving &&
           part->second.formation.value == group.formation;
  });
}

// ---- what must hold ----

// A call fails only for something that was done to its group: one of its ranks was wrong, or a member, a worker, a node
// or a stream of it was harmed not long ago.
void World::CheckCause(const world::Call& call, const absl::Status& status) {
  using Code = absl::StatusCode;
  // What ends a generation fails executions that some rank has begun meanwhile, too.
  const auto is_wrong = [&](const world::Call& other) {
    return other.wrong && other.group->id == call.group->id && other.formation == call.formation;
  };
  const auto& calls = data_->engines().calls;
  switch (status.code()) {
    case Code::kInvalidArgument:
    case Code::kDataLoss:
      if (absl::StrContains(status.message(), "damaged")) return;
      if (std::get<3>(call.identity) < 0) return;  // An earlier formation's.
      if (std::any_of(calls.begin(), calls.end(), is_wrong)) return;
      // Two coordinators have placed two tenants of a name, one after the other.
      if (absl::StrContains(status.message(), "tenants of one group share its ranks")) return;
      // Two processes have joined as one rank, and the coordinator that knew who was first is gone.
      if (absl::StrContains(status.message(), "was claimed twice")) return;
      break;
    case Code::kResourceExhausted:  // A slow rank of anybody's has the staging.
      if (std::any_of(calls.begin(), calls.end(), is_wrong)) return;
      [[fallthrough]];
    case Code::kCancelled:
    case Code::kUnavailable:
    case Code::kAborted:
    case Code::kDeadlineExceeded:
    case Code::kFailedPrecondition: {
      const auto touched = touched_.find(call.group->spec.name);
      if (touched != touched_.end() && now_ - touched->second < kMemory) return;
      break;
    }
    default:
      break;
  }
  invariants_.Fail("cause",
                   absl::StrCat("rank ", call.rank, " of ", Title(call.group->spec),
                                " failed, and nothing was done to it: ", status.ToString()));
}

// All groups that are READY call on, and everything comes to rest.
void World::Heal() {
  data_->SetTime(now_);
  for (Client& client : clients_) {
    for (auto& [group, part] : client.parts) {
      for (auto& [rank, loop] : part.loops) loop.failed_since_heal = loop.good_since_heal = 0;
    }
  }
  for (const GroupStatus& group : coordinator_->Groups()) {
    if (group.state == GroupState::kReady) MoreCalls(group.id, group.formation, kHealedCalls);
  }
  const absl::Time until = now_ + kHealTime;
  while (Step(until)) {
  }
  if (!invariants_.violation().empty()) return;
  now_ = until;
  data_->SetTime(now_);
  CheckHealed();
  data_->Rest();
  CheckStep();
}

// No rank is ever more than one failed call away from the others.
void World::CheckHealed() {
  for (const GroupStatus& group : coordinator_->Groups()) {
    if (group.state != GroupState::kReady) continue;
    for (size_t c = 0; c < clients_.size(); ++c) {
      const auto found = clients_[c].parts.find(group.id);
      if (!Lives(c) || found == clients_[c].parts.end()) continue;
      for (const auto& [rank, loop] : found->second.loops) {
        const bool reached = loop.failed_since_heal <= 1 && !loop.busy &&
                             loop.good_since_heal + 1 >= static_cast<int>(kHealedCalls);
        if (reached) continue;
        invariants_.Fail("reach", absl::StrCat("rank ", rank.value, " of ", Title(group.spec),
                                               " is well, and of its calls ", loop.good_since_heal,
                                               " were good and ", loop.failed_since_heal, " failed",
                                               loop.busy ? "; one waits" : ""));
      }
    }
  }
}

}  // namespace epd::sim
