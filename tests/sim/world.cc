#include "tests/sim/world.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace epd::sim {
namespace {

constexpr absl::Duration kSettleTime = absl::Seconds(75);
// A deadline may pass by so much before somebody must have been told: the node's grace and a few
// messages.
constexpr absl::Duration kSlack = absl::Seconds(4);

constexpr size_t kLastSteps = 40;

// Most clusters of a data plane are small; one in ten has up to 16 nodes, one in fifty has 64.
size_t DrawSize(Rng& rng) {
  const uint64_t dice = rng.Below(100);
  return dice < 2 ? 64 : dice < 12 ? 5 + rng.Below(12) : 2 + rng.Below(3);
}

}  // namespace

World::World(const Options& options) : options_(options), rng_(options.seed) {
  const size_t drawn = options.whole ? DrawSize(rng_) : 2 + rng_.Below(3);
  const size_t num_nodes = options.num_nodes > 0 ? static_cast<size_t>(options.num_nodes) : drawn;
  nodes_.resize(num_nodes);
  for (size_t i = 0; i < num_nodes; ++i) {
    nodes_[i].name = absl::StrCat("node", i);
    nodes_[i].skew = absl::Milliseconds(static_cast<int64_t>(rng_.Below(7200000)) - 3600000);
    nodes_[i].has_nccl = !rng_.Chance(15);
  }
  if (options.whole) MakeDataPlane();
  StartCoordinator();
  for (size_t i = 0; i < num_nodes; ++i) StartNode(i);
}

World::~World() = default;

Outcome World::Run() {
  if (data_ != nullptr) RunWhole();
  while (data_ == nullptr && steps_ < options_.events && invariants_.violation().empty()) {
    if (rng_.Chance(30)) {
      ++steps_;
      RandomAction();
      CheckStep();
    } else if (!Step(now_ + absl::Seconds(2))) {
      now_ += Delay(2000);
    }
  }
  if (invariants_.violation().empty()) Settle();
  outcome_.violation = invariants_.violation();
  outcome_.steps = steps_;
  outcome_.num_nodes = static_cast<int>(nodes_.size());
  outcome_.simulated = now_ - start_;
  return outcome_;
}

void World::Log(const std::string& line) {
  if (!traces()) return;
  const double at = absl::ToDoubleSeconds(now_ - start_);
  if (options_.verbose) std::printf("%8.3f %s\n", at, line.c_str());
  outcome_.last_steps.push_back(absl::StrFormat("%8.3f %s", at, line));
  if (outcome_.last_steps.size() > kLastSteps) outcome_.last_steps.pop_front();
}

void World::At(absl::Duration delay, std::function<void()> what) {
  queue_[{now_ + delay, next_event_++}] = std::move(what);
}

absl::Duration World::Delay(int max_ms) {
  return absl::Milliseconds(1 + static_cast<int64_t>(rng_.Below(max_ms)));
}

// Runs the next thing that is due by `until`: a message, or a machine's deadline. False: nothing
// is.
bool World::Step(absl::Time until) {
  absl::Time next = queue_.empty() ? absl::InfiniteFuture() : queue_.begin()->first.first;
  int who = -1;  // -1: the queue; -2: the coordinator; -3: the workers; else a node.
  const bool ticks = !CoordinatorStopped() || options_.bug == Bug::kDeafCoordinator;
  if (coordinator_ != nullptr && ticks && options_.bug != Bug::kNoCoordinatorTick &&
      coordinator_->NextDeadline() + coordinator_behind_ < next) {
    next = coordinator_->NextDeadline() + coordinator_behind_;
    who = -2;
  }
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].control == nullptr) continue;
    const absl::Time due = ClockOf(i, nodes_[i].control->NextDeadline());
    if (due < next) {
      next = due;
      who = static_cast<int>(i);
    }
  }
  if (data_ != nullptr && data_->NextDeadline() < next) {
    next = data_->NextDeadline();
    who = -3;
  }
  if (next > until) return false;
  stuck_ = next <= now_ && who != -1 ? stuck_ + 1 : 0;
  if (stuck_ > 200) invariants_.Fail("no_endless", "a deadline stays due although it was run");
  now_ = std::max(now_, next);
  if (data_ != nullptr) data_->SetTime(now_);
  ++steps_;
  if (who == -3) {
    data_->Tick();
  } else if (who == -1) {
    const auto what = std::move(queue_.begin()->second);
    queue_.erase(queue_.begin());
    what();
  } else if (who == -2) {
    const Rendezvous::Effects effects = coordinator_->Tick(CoordinatorNow());
    if (effects.empty() && stuck_ == 0) {  // It only looked: no step of the run.
      --steps_;
      return Step(until);
    }
    PerformAll(effects);
  } else {
    Give(static_cast<size_t>(who), Tick{});
  }
  CheckStep();
  return invariants_.violation().empty();
}

void World::RandomAction() {
  const std::optional<size_t> client = RandomClient();
  const size_t node = rng_.Below(nodes_.size());
  if (options_.stops && rng_.Chance(5)) return StopCoordinator();
  if (options_.freezes && rng_.Chance(5)) return FreezeAll();
  const uint64_t dice = rng_.Below(100);
  if (dice < 22 || !client.has_value()) return NewClient();
  if (dice < 36) return JoinSomething(*client);
  if (dice < 60) return Operate(*client);
  if (dice < 66) return UseStaging(node);
  if (dice < 70) return Leave(*client);
  if (dice < 79) return Crash(*client);
  if (dice < 83) return Order(node);
  if (dice < 88) return CrashWorker(node, RandomWorker());
  if (dice < 90) return CrashNode(node);
  if (dice < 92) return CrashCoordinator();
  if (dice < 97) return Disconnect(node);
  const absl::Time until = now_ + Delay(4000);
  while (Step(until)) {
  }
  now_ = std::max(now_, until);
}

void World::Settle() {
  while (CoordinatorStopped() && Step(stopped_until_)) {
  }
  now_ = std::max(now_, stopped_until_);
  if (!invariants_.violation().empty()) return;
  faults_ = false;
  if (data_ != nullptr) data_->StopFaults();
  Log("---- faults stop");
  if (coordinator_ == nullptr) StartCoordinator();
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].control == nullptr) StartNode(i);
    StartWorkers(i);
    if (nodes_[i].connection == 0) Connect(i);
  }
  const absl::Time until = now_ + kSettleTime;
  while (Step(until)) {
  }
  if (!invariants_.violation().empty()) return;
  now_ = until;
  if (data_ != nullptr) Heal();
  if (invariants_.violation().empty()) CheckSettled();
}

void World::CheckStep() {
  if (data_ != nullptr) data_->CheckLeavers();
  if (data_ != nullptr && !data_->violation().empty()) {
    const std::string what = data_->violation();
    const size_t colon = what.find(": ");
    invariants_.Fail(what.substr(0, colon), what.substr(colon + 2));
  }
  if (coordinator_ != nullptr) {
    for (const std::string& what : coordinator_->WaitsWithoutEnd())
      invariants_.Fail("no_endless", what);
    // What came due while it stood still is done when it goes on, which may be later in this moment.
    const absl::Time due =
        std::max({coordinator_->NextDeadline() + coordinator_behind_, stopped_until_, thawed_at_});
    if (!CoordinatorStopped() && due + kSlack < now_)
      invariants_.Fail("no_endless", "the coordinator is overdue");
  }
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    for (const auto& [name, worker] : node.workers) {
      if (worker.pool == nullptr) continue;
      const absl::Status pool = worker.pool->CheckConsistent();
      if (!pool.ok()) invariants_.Fail("dead_hold", std::string(pool.message()));
    }
    if (node.control == nullptr) continue;
    for (const std::string& what : node.control->WaitsWithoutEnd()) {
      invariants_.Fail("no_endless", absl::StrCat(node.name, ": ", what));
    }
    if (std::max(ClockOf(i, node.control->NextDeadline()), thawed_at_) + kSlack < now_)
      invariants_.Fail("no_endless", node.name + " is overdue");
  }
}

void World::CheckSettled() {
  invariants_.CheckAllAnswered();
  std::set<std::tuple<std::string, uint64_t, uint64_t>> living;
  for (size_t c = 0; c < clients_.size(); ++c) {
    if (Lives(c))
      living.insert(
          {nodes_[clients_[c].node].name, clients_[c].node_incarnation, clients_[c].session.value});
  }
  std::map<GroupId, GroupStatus> groups;
  for (const GroupStatus& group : coordinator_->Groups()) {
    groups[group.id] = group;
    const bool rests = group.state == GroupState::kReady || group.state == GroupState::kDegraded ||
                       (group.state == GroupState::kForming && group.orchestrated);
    if (!rests) {
      invariants_.Fail("settled", absl::StrCat("group ", group.spec.name, " is ",
                                               std::string(Name(group.state))));
    }
    for (const RankPhase& rank : group.ranks) {
      const Node& node = nodes_[IndexOf(rank.holder.node)];
      const auto& serving = node.workers.at(rank.holder.worker).tenants;
      if (group.state == GroupState::kReady && serving.count({group.id, group.formation}) == 0) {
        invariants_.Fail("settled", absl::StrCat(ToString(rank.holder.server()), " does not serve ",
                                                 group.spec.name));
      }
      if (living.count({node.name, node.incarnation, rank.holder.session.value}) == 0) {
        invariants_.Fail("dead_hold",
                         absl::StrCat("rank ", rank.holder.rank.value, " of ", group.spec.name,
                                      " belongs to a dead session of ", node.name));
      }
    }
  }
  for (const Node& node : nodes_) {
    std::set<std::pair<GroupId, Formation>> running;
    for (const LocalGroupStatus& local : node.control->Groups()) {
      const auto theirs = groups.find(local.view.id);
      if (theirs == groups.end() || theirs->second.state != local.view.state ||
          theirs->second.epoch != local.view.epoch ||
          theirs->second.formation != local.view.formation) {
        invariants_.Fail(
            "settled", absl::StrCat(node.name, " sees group ", local.view.spec.name, " otherwise"));
      }
      if (local.tenant != TenantPhase::kNone)
        running.insert({local.view.id, local.tenant_formation});
    }
    for (const MembershipStatus& member : node.control->Memberships()) {
      if (living.count({node.name, node.incarnation, member.session.value}) == 0) {
        invariants_.Fail("dead_hold", absl::StrCat("a lease of ", member.group_name,
                                                   " belongs to a dead session of ", node.name));
      }
      const auto group = groups.find(member.group);
      const bool joined = member.state == MembershipState::kJoined;
      if (group == groups.end() || joined != (group->second.state == GroupState::kReady)) {
        invariants_.Fail("settled",
                         absl::StrCat("a session of ", node.name, " in ", member.group_name, " is ",
                                      std::string(Name(member.state))));
      }
    }
    for (const auto& [name, worker] : node.workers) {
      for (const auto& [tenant, set] : worker.tenants) {
        if (running.count(tenant) > 0) continue;
        invariants_.Fail("dead_hold", absl::StrCat(node.name, "'s ", ToString(name),
                                                   " keeps regions of a tenant that has ended"));
      }
    }
  }
  for (size_t c = 0; c < clients_.size(); ++c) {
    if (!Lives(c)) continue;
    for (const auto& [group, part] : clients_[c].parts) {
      if (!part.serving) continue;
      for (const auto& [key, begun] : part.begun) {
        const uint64_t base =
            invariants_.BaseOf(part.coordinator, group, part.formation, key.first, key.second);
        if (part.fresh && (begun > base || base > begun + 1)) {
          invariants_.Fail("cut_off",
                           absl::StrCat("rank ", key.first.value, " of ", part.name, " has begun ",
                                        begun, " but its base is ", base));
        }
      }
    }
  }
}

std::optional<size_t> World::RandomClient() {
  std::vector<size_t> living;
  for (size_t c = 0; c < clients_.size(); ++c) {
    if (Lives(c)) living.push_back(c);
  }
  if (living.empty()) return std::nullopt;
  return living[rng_.Below(living.size())];
}

Outcome Simulate(const Options& options) {
  World world(options);
  return world.Run();
}

}  // namespace epd::sim
