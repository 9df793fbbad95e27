// Workers: answer late, or die first. Their staging is kept in a real StagingPool.
#include "absl/strings/str_cat.h"
#include "tests/sim/world.h"

namespace epd::sim {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kArena = 64 * kPage;
constexpr uint64_t kBudget = 256 * kPage;

}  // namespace

void World::StartWorker(size_t i) {
  Node& node = nodes_[i];
  if (node.control == nullptr || node.worker.incarnation != 0) return;
  node.worker.incarnation = Fresh();
  node.worker.pool = std::make_unique<StagingPool>(kBudget, kPage);
  node.worker.tenants.clear();
  Log(absl::StrCat("worker of ", node.name, " starts"));
  Give(i, WorkerStarted{Incarnation{node.worker.incarnation}, node.worker.has_nccl,
                        node.worker.has_nccl ? "" : "no libnccl.so.2"});
}

void World::CrashWorker(size_t i) {
  Node& node = nodes_[i];
  if (node.control == nullptr || node.worker.incarnation == 0) return;
  Log(absl::StrCat("worker of ", node.name, " dies"));
  const Incarnation dead{node.worker.incarnation};
  node.worker.incarnation = 0;
  node.worker.pool.reset();
  node.worker.tenants.clear();
  Give(i, WorkerDied{dead, absl::InternalError("signal 9")});
  At(Delay(3000), [this, i] { StartWorker(i); });
}

template <typename E>
void World::FromWorker(size_t i, E event) {
  const uint64_t sender = nodes_[i].worker.incarnation;
  const uint64_t node_incarnation = nodes_[i].incarnation;
  event.worker = Incarnation{sender};
  At(Delay(200), [this, i, sender, node_incarnation, event] {
    if (nodes_[i].incarnation != node_incarnation || nodes_[i].control == nullptr) return;
    const size_t effects = Give(i, event);
    if (nodes_[i].worker.incarnation != sender)
      invariants_.SawStaleDelivery("an answer of a dead worker", effects);
  });
}

void World::ToWorker(size_t i, const StartTenant& effect) {
  Worker& worker = nodes_[i].worker;
  const auto key = std::make_pair(effect.group, effect.formation);
  const ArenaSetId set{next_arena_set_++};
  int arenas = 0;
  for (const Placement& member : effect.members)
    arenas += member.node.value == nodes_[i].name ? 1 : 0;
  const bool fits =
      arenas > 0 && worker.pool->AddSet(set, arenas, kArena).ok() &&
      worker.pool->Allocate(set, kPage * (1 + rng_.Below(8)), RegionOwner{effect.group.value}).ok();
  if (!fits || (faults_ && rng_.Chance(2))) {
    FromWorker(
        i,
        TenantFailed{
            {}, effect.group, effect.formation, absl::ResourceExhaustedError("staging is full")});
  } else {
    FromWorker(i, TenantReady{{}, effect.group, effect.formation});
  }
  worker.tenants[key] = set;
}

void World::ToWorker(size_t i, const EndTenant& effect) {
  Worker& worker = nodes_[i].worker;
  const auto it = worker.tenants.find({effect.group, effect.formation});
  if (it == worker.tenants.end()) return;
  if (options_.bug == Bug::kLeakRegion && rng_.Chance(50)) return;
  for (const auto& region : worker.pool->Regions()) {
    if (region.region.set == it->second) (void)worker.pool->Free(it->second, region.region.offset);
  }
  (void)worker.pool->RemoveSet(it->second);
  worker.tenants.erase(it);
}

void World::ToWorker(size_t i, const DrainTenant& effect) {
  if (faults_ && rng_.Chance(20)) return;  // An operation never ends: the deadline must do it.
  FromWorker(i, TenantDrained{{}, effect.group, effect.formation});
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
  FromWorker(i, made);
}

void World::ToWorker(size_t i, const InitCommunicator& effect) {
  // Any function of the bytes that tells ids apart serves as a digest here.
  CommunicatorInitialised done{{}, effect.group, effect.epoch, absl::OkStatus(), effect.id.bytes()};
  if (faults_ && rng_.Chance(2)) done.status = absl::InternalError("ncclCommInitRank failed");
  FromWorker(i, done);
}

void World::UseStaging(size_t i) {
  Worker& worker = nodes_[i].worker;
  if (worker.incarnation == 0 || worker.tenants.empty()) return;
  auto it = worker.tenants.begin();
  std::advance(it, rng_.Below(worker.tenants.size()));
  const auto got = worker.pool->Allocate(it->second, kPage * (1 + rng_.Below(30)),
                                         RegionOwner{it->first.first.value});
  if (!got.ok() || rng_.Chance(50)) return;
  (void)worker.pool->Free(it->second, got->region.offset);
}

}  // namespace epd::sim
