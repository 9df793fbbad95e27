// Workers: answer late, or die first. Their staging is kept in a real StagingPool.
#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "tests/sim/world.h"

namespace epd::sim {
namespace {

constexpr WorkerName kWorkers[] = {kCpuWorker, WorkerName{0}, WorkerName{1}};
constexpr uint64_t kPage = 4096;
constexpr uint64_t kArena = 64 * kPage;
constexpr uint64_t kBudget = 256 * kPage;

}  // namespace

void World::StartWorker(size_t i, const WorkerName& name) {
  Node& node = nodes_[i];
  Worker& worker = node.workers[name];
  if (node.control == nullptr || worker.incarnation != 0) return;
  worker.incarnation = Fresh();
  worker.tenants.clear();
  worker.last_said = now_;
  if (data_ == nullptr) {
    worker.pool = std::make_unique<StagingPool>(kBudget, kPage);
  } else {
    data_->StartWorker(WorkerIndex(i, name), Incarnation{worker.incarnation}, node.sessions);
  }
  Log(absl::StrCat("worker ", ToString(name), " of ", node.name, " starts"));
  WorkerReport report{name, Incarnation{worker.incarnation}, node.has_nccl,
                      node.has_nccl ? "" : "no libnccl.so.2"};
  if (data_ != nullptr) report.wire_address = absl::StrCat(node.name, ":", worker.incarnation);
  Give(i, WorkerStarted{report});
}

void World::StartWorkers(size_t i) {
  for (const WorkerName& name : kWorkers) StartWorker(i, name);
}

WorkerName World::RandomWorker() { return kWorkers[rng_.Below(std::size(kWorkers))]; }

void World::CrashWorker(size_t i, const WorkerName& name) {
  Node& node = nodes_[i];
  Worker& worker = node.workers[name];
  if (node.control == nullptr || worker.incarnation == 0) return;
  Log(absl::StrCat("worker ", ToString(name), " of ", node.name, " dies"));
  const Incarnation dead{worker.incarnation};
  worker.incarnation = 0;
  worker.died_at = now_;
  worker.pool.reset();
  worker.tenants.clear();
  if (data_ != nullptr) {
    TouchWorker(WorkerIndex(i, name));
    data_->KillWorker(WorkerIndex(i, name), absl::UnavailableError("signal 9"));
  }
  if (options_.bug == Bug::kSpreadWorkerDeath) {
    for (const WorkerName& other : kWorkers) {
      const Incarnation run{node.workers[other].incarnation};
      if (!run) continue;
      node.workers[other].pool = std::make_unique<StagingPool>(kBudget, kPage);
      node.workers[other].tenants.clear();
      Give(i, WorkerDied{run, absl::InternalError("signal 9"), other});
      Give(i, WorkerStarted{{other, run, node.has_nccl, ""}});
    }
  }
  Give(i, WorkerDied{dead, absl::InternalError("signal 9"), name});
  At(Delay(3000), [this, i, name] { StartWorker(i, name); });
}

// Whether every worker of the formation has lived for long enough that nobody can have lost it.
bool World::WorkersLive(const GroupTransition& t) const {
  constexpr absl::Duration kMemory = absl::Seconds(30);
  const auto members = invariants_.MembersOf(coordinator_->incarnation(), t.group, t.formation);
  if (members.empty()) return false;
  return std::all_of(members.begin(), members.end(), [&](const RankHolder& member) {
    const Node& node = nodes_[IndexOf(member.node)];
    const auto worker = node.workers.find(member.worker);
    return worker != node.workers.end() && worker->second.incarnation != 0 &&
           worker->second.died_at + kMemory < now_;
  });
}

template <typename E>
void World::FromWorker(size_t i, const WorkerName& name, E event) {
  const uint64_t sender = nodes_[i].workers[name].incarnation;
  const uint64_t node_incarnation = nodes_[i].incarnation;
  event.worker = Incarnation{sender};
  absl::Duration delay = Delay(200);
  if (data_ != nullptr) {
    absl::Time& last = nodes_[i].workers[name].last_said;
    last = std::max(last, now_ + delay);
    delay = last - now_;
  }
  At(delay, [this, i, name, sender, node_incarnation, answer = NodeEvent(event)] {
    if (nodes_[i].incarnation != node_incarnation || nodes_[i].control == nullptr) return;
    if (const auto* ready = std::get_if<TenantReady>(&answer))
      invariants_.SawReady({NodeId{nodes_[i].name}, name}, ready->group, ready->formation);
    const size_t effects = Give(i, answer);
    if (nodes_[i].workers[name].incarnation != sender)
      invariants_.SawStaleDelivery("an answer of a dead worker", effects);
    if (options_.bug == Bug::kAnswerForOthers) GiveAsOfOthers(i, name, answer);
  });
}

void World::GiveAsOfOthers(size_t i, const WorkerName& name, const NodeEvent& answer) {
  const auto* ready = std::get_if<TenantReady>(&answer);
  for (const WorkerName& other : kWorkers) {
    if (ready == nullptr || other == name) continue;
    Give(i, TenantReady{Incarnation{nodes_[i].workers[other].incarnation}, ready->group,
                        ready->formation});
  }
}

void World::ToWorker(size_t i, const StartTenant& effect) {
  Worker& worker = nodes_[i].workers[effect.to];
  const auto key = std::make_pair(effect.group, effect.formation);
  if (data_ != nullptr) {
    worker.tenants[key] = ArenaSetId();
    if (!faults_ || !rng_.Chance(2))
      return data_->Tell(WorkerIndex(i, effect.to), NodeId{nodes_[i].name}, effect);
    Touch(effect.spec.name);
    return FromWorker(i, effect.to,
                      TenantFailed{{},
                                   effect.group,
                                   effect.formation,
                                   absl::ResourceExhaustedError("no memory for its rows")});
  }
  const ArenaSetId set{next_arena_set_++};
  int arenas = 0;
  for (const RankHolder& member : effect.members)
    arenas += member.server() == WorkerId{NodeId{nodes_[i].name}, effect.to} ? 1 : 0;
  const bool fits = arenas > 0 && worker.pool->AddSet(set, arenas, kArena).ok() &&
                    worker.pool->Allocate(set, kPage * (1 + rng_.Below(8))).ok();
  if (!fits || (faults_ && rng_.Chance(2))) {
    FromWorker(
        i, effect.to,
        TenantFailed{
            {}, effect.group, effect.formation, absl::ResourceExhaustedError("staging is full")});
  } else {
    FromWorker(i, effect.to, TenantReady{{}, effect.group, effect.formation});
  }
  worker.tenants[key] = set;
}

void World::ToWorker(size_t i, const EndTenant& effect) {
  Worker& worker = nodes_[i].workers[effect.to];
  if (data_ != nullptr) {
    data_->Tell(WorkerIndex(i, effect.to), effect);
    worker.tenants.erase({effect.group, effect.formation});
    return;
  }
  const auto it = worker.tenants.find({effect.group, effect.formation});
  if (it == worker.tenants.end()) return;
  if (options_.bug == Bug::kLeakRegion && rng_.Chance(50)) return;
  for (const Region& region : worker.pool->Regions()) {
    if (region.set == it->second) (void)worker.pool->Free(it->second, region.offset);
  }
  (void)worker.pool->RemoveSet(it->second);
  worker.tenants.erase(it);
}

void World::ToWorker(size_t i, const DrainTenant& effect) {
  if (data_ != nullptr) return data_->Tell(WorkerIndex(i, effect.to), effect);
  if (faults_ && rng_.Chance(20)) return;  // An operation never ends: the deadline must do it.
  FromWorker(i, effect.to, TenantDrained{{}, effect.group, effect.formation});
}

void World::ToWorker(size_t i, const MakeUniqueId& effect) {
  UniqueIdMade made{{}, effect.group, effect.epoch, absl::OkStatus(), UniqueId()};
  if (faults_ && rng_.Chance(3)) {
    made.status = absl::InternalError("ncclGetUniqueId failed");
  } else {
    if (last_id_.empty() || options_.bug != Bug::kReuseId) last_id_ = absl::StrCat("id-", Fresh());
    made.id = UniqueId(last_id_);
    invariants_.SawUniqueIdMade(effect.group, effect.epoch, made.id);
  }
  FromWorker(i, effect.to, made);
}

void World::ToWorker(size_t i, const InitCommunicator& effect) {
  // Any function of the bytes that tells ids apart serves as a digest here.
  CommunicatorInitialised done{{}, effect.group, effect.epoch, absl::OkStatus(), effect.id.bytes()};
  if (faults_ && rng_.Chance(2)) done.status = absl::InternalError("ncclCommInitRank failed");
  FromWorker(i, effect.to, done);
}

void World::FromEngine(size_t i, const WorkerName& name, const NodeEvent& event) {
  if (const auto* e = std::get_if<TenantReady>(&event)) FromWorker(i, name, *e);
  if (const auto* e = std::get_if<TenantFailed>(&event)) FromWorker(i, name, *e);
  if (const auto* e = std::get_if<TenantBroken>(&event)) FromWorker(i, name, *e);
  if (const auto* e = std::get_if<TenantDrained>(&event)) FromWorker(i, name, *e);
}

int World::WorkerIndex(size_t i, const WorkerName& name) const {
  const auto found = std::find(std::begin(kWorkers), std::end(kWorkers), name);
  return static_cast<int>(i * std::size(kWorkers)) + static_cast<int>(found - std::begin(kWorkers));
}

std::vector<int> World::WorkersOf(size_t i) const {
  std::vector<int> workers;
  for (const WorkerName& name : kWorkers) workers.push_back(WorkerIndex(i, name));
  return workers;
}

void World::UseStaging(size_t i) {
  if (data_ != nullptr) return;
  Worker& worker = nodes_[i].workers[kWorkers[steps_ % std::size(kWorkers)]];
  if (worker.incarnation == 0 || worker.tenants.empty()) return;
  auto it = worker.tenants.begin();
  std::advance(it, rng_.Below(worker.tenants.size()));
  const auto got = worker.pool->Allocate(it->second, kPage * (1 + rng_.Below(30)));
  if (!got.ok() || rng_.Chance(50)) return;
  (void)worker.pool->Free(it->second, got->region.offset);
}

}  // namespace epd::sim
