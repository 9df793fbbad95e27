#include "daemon/control/rendezvous/epoch_setup.h"

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace epd {
namespace {

bool AllUp(const ClusterCommunicator& communicator) {
  return absl::c_all_of(communicator.workers,
                        [](const auto& entry) { return bool{entry.second.worker}; });
}

// Workers of one node count as one: they ask themselves whether their GPUs can read each other's memory, and refuse the
// group if not.
bool WorksWithoutId(const GroupSpec& spec, const ClusterCommunicator& communicator) {
  return spec.traits().WorksAlone(communicator.IdStays() ? 1 : communicator.workers.size());
}

}  // namespace

std::string EpochSetup::LostWorkers(ClusterGroup& group) {
  ClusterCommunicator& communicator = groups_.Communicator(group);
  std::string lost;
  for (auto& [id, bound] : communicator.workers) {
    const WorkerRun now = nodes_.Run(id);
    const GroupWork* work = nodes_.Work(id, communicator.id);
    const bool fenced = work != nullptr && work->fenced >= communicator.epoch;
    if (fenced || (bound.worker && bound != now && !nodes_.At(id.node).lost)) {
      absl::StrAppend(&lost, lost.empty() ? "" : " ",
                      DescribeWorker(id, groups_.Derived(group).members.items()));
    } else if (!bound.worker && now.worker) {
      bound = now;
    }
  }
  return lost;
}

void EpochSetup::Bind(const ClusterGroup& group, ClusterCommunicator& communicator) const {
  for (const auto& [rank, key] : group.ranks.holders) {
    const WorkerId worker = claims_.Worker(key, rank);
    communicator.workers[worker] = nodes_.Run(worker);
    communicator.worker_of[rank] = worker;
  }
}

void EpochSetup::Begin(const ClusterGroup& group, const absl::Status& why) {
  ClusterCommunicator& communicator = groups_.Communicator(group);
  groups_.TouchTenants(group);  // Nodes of the old epoch must learn that it is over.
  Epoch above = communicator.epoch;
  for (const auto& [rank, key] : group.ranks.holders)
    above = std::max(above, claims_.At(key).claim.min_epoch);
  communicator.Clear();
  communicator.over = why;
  communicator.epoch = floors_.Next(group.spec.name, above);
  Bind(group, communicator);
  groups_.TouchTenants(group);
}

absl::Status EpochSetup::CompareRanks(const ClusterGroup& group) const {
  const auto& [first, holder] = *group.ranks.holders.begin();
  const bool on_gpu = claims_.Worker(holder, first).name.on_gpu();
  for (const auto& [rank, key] : group.ranks.holders) {
    if (claims_.Worker(key, rank).name.on_gpu() == on_gpu) continue;
    return MixedWorkersError(group.spec, claims_.Holder(key, rank), claims_.Holder(holder, first));
  }
  return absl::OkStatus();
}

absl::Status EpochSetup::CompareTenants(const ClusterGroup& group,
                                        const ClusterGroup& other) const {
  for (const auto& [rank, key] : other.ranks.holders) {
    const ClaimKey& mine = group.ranks.holders.at(rank);
    if (claims_.Worker(mine, rank) == claims_.Worker(key, rank)) continue;
    return TenantWorkerError(group.spec, claims_.Holder(mine, rank), claims_.Holder(key, rank),
                             other.spec.tenant);
  }
  return absl::OkStatus();
}

bool EpochSetup::NeedsNew(const ClusterGroup& group) const {
  const ClusterCommunicator& communicator = groups_.Communicator(group);
  if (!communicator.epoch || communicator.stale) return true;
  for (const auto& [rank, key] : group.ranks.holders) {
    const auto worker = communicator.worker_of.find(rank);
    if (worker == communicator.worker_of.end() || worker->second != claims_.Worker(key, rank))
      return true;
    if (claims_.At(key).claim.min_epoch > communicator.epoch) return true;
  }
  return false;
}

absl::Status EpochSetup::Enter(ClusterGroup& group) {
  absl::Status different = CompareRanks(group);
  for (const ClusterGroup* other : groups_.Tenants(group.spec.name)) {
    if (other == &group || other->state == GroupState::kForming) continue;
    different.Update(CompareTenants(group, *other));
  }
  if (!different.ok()) return different;
  const ClusterCommunicator& communicator = groups_.Communicator(group);
  const bool fits = communicator.epoch && !communicator.stale &&
                    groups_.Derived(group).fits == communicator.epoch;
  if (!fits && NeedsNew(group)) {
    Begin(group, absl::AbortedError(absl::StrCat(
                     "group=", group.spec.name, " epoch=", communicator.epoch.value,
                     ": a new epoch has begun with tenant \"", group.spec.tenant, "\"")));
  }
  if (group.epoch != communicator.epoch) groups_.Touch(group);
  group.epoch = communicator.epoch;
  groups_.Derived(group).fits = communicator.epoch;
  return absl::OkStatus();
}

absl::StatusOr<bool> EpochSetup::Connect(const ClusterGroup& group) {
  ClusterCommunicator& communicator = groups_.Communicator(group);
  // Until a worker is up nobody knows what it has.
  if (!communicator.id_known && !AllUp(communicator)) return false;
  absl::StatusOr<bool> done = DecideId(group);
  if (done.ok() && *done) done = Initialise(group);
  if (!done.ok()) communicator.stale = true;  // Whoever comes next tries anew.
  return done;
}

absl::Status EpochSetup::CompareWorkers(const ClusterGroup& group) const {
  std::map<WorkerId, size_t> num_ranks;
  for (const auto& [rank, key] : group.ranks.holders) ++num_ranks[claims_.Worker(key, rank)];
  std::vector<NodeToCompare> nodes;
  for (const auto& [id, count] : num_ranks) {
    nodes.push_back({id, count, nodes_.At(id.node).facts});
    nodes.back().facts.nccl_version = nodes_.Worker(id).nccl_version;
  }
  const bool needs_nccl = !WorksWithoutId(group.spec, groups_.Communicator(group));
  return CompareNodes(Title(group.spec), nodes, needs_nccl);
}

std::string EpochSetup::WhyNoId(const ClusterCommunicator& communicator) const {
  const WorkerId& first = communicator.workers.begin()->first;
  const std::string& other = nodes_.Worker(first).nccl_version;
  const bool travels = !communicator.IdStays();
  for (const auto& [id, bound] : communicator.workers) {
    const std::string& no_ids = nodes_.At(id.node).link.no_ids;
    const WorkerReport& worker = nodes_.Worker(id);
    if (!worker.has_nccl) return absl::StrCat(Named(id), ": ", worker.nccl_problem);
    if (travels && !no_ids.empty()) return absl::StrCat("node ", id.node.value, ": ", no_ids);
    if (worker.nccl_version != other)
      return absl::StrCat("NCCL differs: ", Named(id), " has ", worker.nccl_version, ", ",
                          Named(first), " has ", other);
  }
  return "";
}

absl::StatusOr<bool> EpochSetup::DecideId(const ClusterGroup& group) {
  ClusterCommunicator& communicator = groups_.Communicator(group);
  if (communicator.id_known) return true;
  if (absl::Status agreed = CompareWorkers(group); !agreed.ok()) return agreed;
  if (const std::string why = WhyNoId(communicator); !why.empty()) {
    if (!WorksWithoutId(group.spec, communicator)) {
      return absl::FailedPreconditionError(
          absl::StrCat(Label(group), " phase=bootstrapping: backend ", group.spec.backend,
                       " needs NCCL, but there is none: ", why, "; see epctl doctor"));
    }
    communicator.no_id_reason = absl::StrCat("none: ", why);
  } else {
    const GroupWork* work = nodes_.Work(communicator.worker_of.at(Rank{0}), communicator.id);
    if (work == nullptr || work->id_epoch != communicator.epoch) return false;
    if (absl::Status taken = TakeId(group, *work); !taken.ok()) return taken;
  }
  communicator.id_known = true;
  groups_.TouchTenants(group);
  return true;
}

absl::Status EpochSetup::TakeId(const ClusterGroup& group, const GroupWork& work) {
  ClusterCommunicator& communicator = groups_.Communicator(group);
  absl::Status bad = work.id_status;
  const bool travels = !communicator.IdStays();
  if (bad.ok() && travels && work.id.empty())
    bad = absl::UnavailableError("its bytes did not arrive");
  if (bad.ok() && travels && !used_ids_.MarkUsed(work.id))
    bad = absl::AbortedError("it has served another epoch; an id serves one");
  if (bad.ok()) {
    communicator.unique_id = work.id;
  } else if (WorksWithoutId(group.spec, communicator)) {
    communicator.no_id_reason = absl::StrCat("none: ", bad.message());
  } else {
    return absl::Status(
        bad.code(),
        absl::StrCat(Label(group), " phase=bootstrapping: making the unique id: ", bad.message()));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> EpochSetup::Initialise(const ClusterGroup& group) {
  ClusterCommunicator& communicator = groups_.Communicator(group);
  std::optional<std::string> digest;
  for (const auto& [id, bound] : communicator.workers) {
    if (!bound.worker) return false;
    const GroupWork* work = nodes_.Work(id, communicator.id);
    if (work == nullptr || work->init_epoch != communicator.epoch) return false;
    if (!work->init_status.ok()) {
      return absl::Status(
          work->init_status.code(),
          absl::StrCat(Label(group), " phase=bootstrapping: ", Named(id),
                       " cannot initialise its communicator: ", work->init_status.message()));
    }
    if (digest.has_value() && *digest != work->init_sha256) {
      return absl::InternalError(
          absl::StrCat(Label(group), " phase=bootstrapping: ", Named(id),
                       " was given another unique id than the others; report this"));
    }
    digest = work->init_sha256;
  }
  communicator.initialised = true;
  communicator.unique_id = UniqueId();  // Nobody needs it any more.
  communicator.id_digest = communicator.no_id_reason.empty() ? absl::BytesToHexString(*digest)
                                                             : communicator.no_id_reason;
  groups_.TouchTenants(group);
  return true;
}

}  // namespace epd
