// How a group goes from complete to READY, and what throws it back.
#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "daemon/control/cut_off.h"
#include "daemon/control/rendezvous_impl.h"
#include "daemon/core/check.h"

namespace epd {
namespace {

bool IsComplete(const ClusterGroup& group) { return group.holders.size() == group.spec.num_ranks; }

// The CPU backend works without NCCL; the others need a real unique id.
bool WorksWithoutNccl(const GroupSpec& spec) {
  return spec.backend == "cpu" || spec.backend == "auto";
}

}  // namespace

void Rendezvous::Impl::Advance(ClusterGroup& group) {
  if (CommunicatorOf(group).epoch) CheckWorkers(group);
  if (group.holders.empty() && !group.orchestrated) {
    End(group, GroupEvent::kFail, group.cause);
    return;
  }
  if (group.holders.empty() && group.state != GroupState::kForming &&
      group.state != GroupState::kDraining) {
    Reset(group, group.cause);
    return;
  }
  switch (group.state) {
    case GroupState::kForming:
      if (!IsComplete(group) || InGrace()) return;
      Fire(group, GroupEvent::kComplete, absl::OkStatus());
      Steps(group);
      return;
    case GroupState::kDegraded:
      if (!IsComplete(group)) return;
      group.deadline = now_ + group.spec.deadlines.form;
      Fire(group, GroupEvent::kComplete, group.cause);
      Steps(group);
      return;
    case GroupState::kBootstrapping:
    case GroupState::kReforming:
      if (IsComplete(group) && !InGrace() && now_ >= group.again_at) Steps(group);
      return;
    case GroupState::kReady:
      if (const GroupWork* work = BrokenWork(group); work != nullptr) {
        RestAfterBreak(group);
        // Whoever misses a member's stream has aborted the communicator; only an epoch has a new one.
        const bool by_nccl = group.spec.on_device() && Derived(group).workers.size() > 1;
        if (by_nccl && absl::IsUnavailable(work->broken_cause)) CommunicatorOf(group).stale = true;
        FormAgain(group, work->broken_cause);
        return;
      }
      if (!Recounted(group)) return;
      FormAgain(group,
                absl::AbortedError(absl::StrCat(
                    "group=", Title(group.spec), " epoch=", group.epoch.value,
                    " phase=re_forming: executions were begun while the group formed again")));
      return;
    case GroupState::kDraining:
      AdvanceDraining(group);
      return;
    case GroupState::kClosed:
    case GroupState::kCount:
      return;
  }
}

// Binds workers to the epoch as they come up and names those that are not the bound ones any more.
std::string Rendezvous::Impl::LostWorkers(ClusterGroup& group) {
  ClusterCommunicator& communicator = CommunicatorOf(group);
  std::string lost;
  for (auto& [id, bound] : communicator.workers) {
    const KnownNode* node = NodeOf(id.node);
    const WorkerRun now{node->incarnation, ReportOf(id).incarnation};
    const GroupWork* work = WorkOf(id, communicator.id);
    const bool fenced = work != nullptr && work->fenced >= communicator.epoch;
    if (fenced || (bound.worker && bound != now && !node->lost)) {
      absl::StrAppend(&lost, lost.empty() ? "" : ", ", "the ", ToString(id.name),
                      " worker of node ", id.node.value);
    } else if (!bound.worker && now.worker) {
      bound = now;
    }
  }
  return lost;
}

// A lost worker ends the epoch, and with it the formations of all tenants that are in it: whichever
// active one is looked at first begins the next epoch, the others follow.
void Rendezvous::Impl::CheckWorkers(ClusterGroup& group) {
  ClusterCommunicator& communicator = CommunicatorOf(group);
  const std::string lost = LostWorkers(group);
  const bool active = !group.holders.empty() &&
                      (group.state == GroupState::kBootstrapping ||
                       group.state == GroupState::kReady || group.state == GroupState::kReforming);
  const bool behind = group.epoch < communicator.epoch;
  if (!lost.empty() && (!active || behind)) communicator.stale = true;
  if (!active || (lost.empty() && !behind) || !group.epoch) return;
  absl::Status cause = absl::AbortedError(absl::StrCat(
      "group=", Title(group.spec), " epoch=", group.epoch.value, ": ", lost,
      " has died; it is being replaced, calls made from now on wait for the new ", "epoch"));
  if (behind) cause = communicator.over;
  EndFormation(group, cause);
  if (!behind) NewEpoch(group, cause);
  group.epoch = communicator.epoch;
  if (group.state == GroupState::kReady) group.deadline = now_ + group.spec.deadlines.form;
  Fire(group, GroupEvent::kWorkerLost, cause);
}

void Rendezvous::Impl::Steps(ClusterGroup& group) {
  if (std::exchange(group.adoptable, false) && adopting_ && Adopt(group)) return;
  if (group.started && group.state == GroupState::kReforming && Recounted(group)) {
    EndFormation(group, group.base_cause);
    Fire(group, GroupEvent::kRecount, group.cause);
  }
  if (!group.started && !EnterEpoch(group)) return;
  if (group.state == GroupState::kReforming && !group.started && !SessionsDrained(group)) return;
  if (!CommunicatorOf(group).initialised &&
      (!StepCompare(group) || !StepUniqueId(group) || !StepInitialise(group)))
    return;
  if (!group.started && !StartFormation(group)) return;
  if (!StepTenants(group)) return;
  for (const ClaimKey& key : MembersOf(group)) Find(key)->served = true;
  group.deadline = absl::InfiniteFuture();
  group.cause = absl::OkStatus();
  group.recovered = false;
  Fire(group, GroupEvent::kServing, absl::OkStatus());
}

bool Rendezvous::Impl::SessionsDrained(const ClusterGroup& group) const {
  for (const ClaimKey& key : MembersOf(group)) {
    const KnownClaim& known = *Find(key);
    if (!known.since) continue;
    if (!known.claim.drained.has_value() || known.claim.drained->after < group.formation)
      return false;
  }
  return true;
}

bool Rendezvous::Impl::EnterEpoch(ClusterGroup& group) {
  absl::Status apart = CompareRanks(group);
  for (const ClusterGroup* other : TenantsOf(group.spec.name)) {
    if (other == &group || other->state == GroupState::kForming) continue;
    apart.Update(ComparePlaces(group, *other));
  }
  if (!apart.ok()) {
    End(group, GroupEvent::kFail, apart);
    return false;
  }
  const ClusterCommunicator& communicator = CommunicatorOf(group);
  const bool fits =
      communicator.epoch && !communicator.stale && Derived(group).fits == communicator.epoch;
  if (!fits && NeedsNewEpoch(group)) {
    NewEpoch(group, absl::AbortedError(absl::StrCat(
                        "group=", group.spec.name, " epoch=", CommunicatorOf(group).epoch.value,
                        ": a new epoch has begun with tenant \"", group.spec.tenant, "\"")));
  }
  if (group.epoch != communicator.epoch) Touch(group);
  group.epoch = communicator.epoch;
  Derived(group).fits = communicator.epoch;
  return true;
}

bool Rendezvous::Impl::NeedsNewEpoch(const ClusterGroup& group) const {
  const ClusterCommunicator& communicator = CommunicatorOf(group);
  if (!communicator.epoch || communicator.stale) return true;
  for (const auto& [rank, key] : group.holders) {
    const auto place = communicator.places.find(rank);
    if (place == communicator.places.end() || place->second.node != key.node) return true;
    if (place->second.name != WorkerOf(key, rank)) return true;
    if (Find(key)->claim.min_epoch > communicator.epoch) return true;
  }
  return false;
}

void Rendezvous::Impl::NewEpoch(ClusterGroup& group, const absl::Status& why) {
  ClusterCommunicator& communicator = CommunicatorOf(group);
  Epoch above = std::max(communicator.epoch, global_floor_);
  if (const auto it = floors_.find(group.spec.name); it != floors_.end())
    above = std::max(above, it->second);
  TouchTenants(group);  // Nodes of the old epoch must learn that it is over.
  const GroupId id = communicator.id;
  communicator = ClusterCommunicator{};
  communicator.id = id;
  communicator.over = why;
  for (const auto& [rank, key] : group.holders) {
    above = std::max(above, Find(key)->claim.min_epoch);
  }
  BindWorkers(group, communicator);
  communicator.epoch = Epoch{above.value + 1};
  max_epoch_ = std::max(max_epoch_, communicator.epoch);
  TouchTenants(group);
}

bool Rendezvous::Impl::StepCompare(ClusterGroup& group) {
  if (CommunicatorOf(group).id_known) return true;
  for (const auto& [id, bound] : CommunicatorOf(group).workers) {
    if (!bound.worker) return false;  // Until it is up nobody knows what it has.
  }
  std::map<WorkerId, size_t> num_ranks;
  for (const auto& [rank, key] : group.holders) ++num_ranks[{key.node, WorkerOf(key, rank)}];
  std::vector<NodeToCompare> nodes;
  for (const auto& [id, count] : num_ranks) {
    nodes.push_back({id, count, NodeOf(id.node)->facts});
    nodes.back().facts.nccl_version = ReportOf(id).nccl_version;
  }
  const absl::Status agreed = CompareNodes(Title(group.spec), nodes, !WorksWithoutNccl(group.spec));
  if (agreed.ok()) return true;
  CommunicatorOf(group).stale = true;  // Whoever comes next tries anew.
  End(group, GroupEvent::kFail, agreed);
  return false;
}

// Why the members of the epoch cannot share a unique id; empty when they can.
std::string Rendezvous::Impl::WhyNoId(const ClusterGroup& group) const {
  const ClusterCommunicator& communicator = CommunicatorOf(group);
  const WorkerId& first = communicator.workers.begin()->first;
  const std::string& other = ReportOf(first).nccl_version;
  const bool travels = !communicator.IdStays();
  for (const auto& [id, bound] : communicator.workers) {
    const std::string& no_ids = NodeOf(id.node)->link.no_ids;
    const WorkerReport& worker = ReportOf(id);
    if (!worker.has_nccl) return absl::StrCat(Named(id), ": ", worker.nccl_problem);
    if (travels && !no_ids.empty()) return absl::StrCat("node ", id.node.value, ": ", no_ids);
    if (worker.nccl_version != other)
      return absl::StrCat("NCCL differs: ", Named(id), " has ", worker.nccl_version, ", ",
                          Named(first), " has ", other);
  }
  return "";
}

bool Rendezvous::Impl::StepUniqueId(ClusterGroup& group) {
  ClusterCommunicator& communicator = CommunicatorOf(group);
  if (communicator.id_known) return true;
  for (const auto& [id, bound] : communicator.workers) {
    if (!bound.worker) return false;  // It is not up yet.
  }
  if (const std::string why = WhyNoId(group); !why.empty()) {
    const std::string reason = absl::StrCat("none: ", why);
    const bool alone = group.spec.backend == "cuda" && communicator.workers.size() == 1;
    if (!WorksWithoutNccl(group.spec) && !alone) {
      communicator.stale = true;  // Whoever comes next tries anew.
      End(group, GroupEvent::kFail,
          absl::FailedPreconditionError(
              absl::StrCat("group=", Title(group.spec), " epoch=", group.epoch.value,
                           " phase=bootstrapping: backend ", group.spec.backend,
                           " needs NCCL, but there is ", reason, "; see epctl doctor")));
      return false;
    }
    communicator.no_id_reason = reason;
    communicator.id_known = true;
    TouchTenants(group);
    return true;
  }
  const GroupWork* work = WorkOf(communicator.places.at(Rank{0}), communicator.id);
  return work != nullptr && work->id_epoch == communicator.epoch && TakeUniqueId(group, *work);
}

bool Rendezvous::Impl::TakeUniqueId(ClusterGroup& group, const GroupWork& work) {
  ClusterCommunicator& communicator = CommunicatorOf(group);
  absl::Status bad = work.id_status;
  const bool travels = !communicator.IdStays();
  if (bad.ok() && travels && work.id.empty())
    bad = absl::UnavailableError("its bytes did not arrive");
  if (bad.ok() && travels && !used_ids_.Submission(work.id)) {
    bad = absl::AbortedError("it has served another epoch; an id serves one");
  }
  if (bad.ok()) {
    communicator.unique_id = work.id;
  } else if (WorksWithoutNccl(group.spec)) {
    communicator.no_id_reason = absl::StrCat("none: ", bad.message());
  } else {
    communicator.stale = true;
    End(group, GroupEvent::kFail,
        absl::Status(bad.code(),
                     absl::StrCat("group=", Title(group.spec), " epoch=", group.epoch.value,
                                  " phase=bootstrapping: making the unique id: ", bad.message())));
    return false;
  }
  communicator.id_known = true;
  TouchTenants(group);
  return true;
}

bool Rendezvous::Impl::StepInitialise(ClusterGroup& group) {
  ClusterCommunicator& communicator = CommunicatorOf(group);
  std::optional<std::string> digest;
  for (const auto& [id, bound] : communicator.workers) {
    if (!bound.worker) return false;
    const GroupWork* work = WorkOf(id, communicator.id);
    if (work == nullptr || work->init_epoch != communicator.epoch) return false;
    if (!work->init_status.ok()) {
      communicator.stale = true;
      End(group, GroupEvent::kFail,
          absl::Status(
              work->init_status.code(),
              absl::StrCat("group=", Title(group.spec), " epoch=", group.epoch.value,
                           " phase=bootstrapping: ", Named(id),
                           " cannot initialise its communicator: ", work->init_status.message())));
      return false;
    }
    if (digest.has_value() && *digest != work->init_sha256) {
      communicator.stale = true;
      End(group, GroupEvent::kFail,
          absl::InternalError(absl::StrCat(
              "group=", Title(group.spec), " epoch=", group.epoch.value, " phase=bootstrapping: ",
              Named(id), " was given another unique id than the others; report this")));
      return false;
    }
    digest = work->init_sha256;
  }
  communicator.initialised = true;
  communicator.unique_id = UniqueId();  // Nobody needs it any more.
  communicator.id_digest = communicator.no_id_reason.empty() ? absl::BytesToHexString(*digest)
                                                             : communicator.no_id_reason;
  TouchTenants(group);
  return true;
}

bool Rendezvous::Impl::StartFormation(ClusterGroup& group) {
  if (!RecoverBases(group)) return false;
  std::vector<Rank> staying;
  std::vector<ExecutionCount> counts;
  group.cut_used.clear();
  for (const ClaimKey& key : MembersOf(group)) {
    KnownClaim& known = *Find(key);
    if (known.since && known.claim.drained.has_value()) {
      staying.insert(staying.end(), known.claim.ranks.begin(), known.claim.ranks.end());
      for (const ExecutionCount& count : known.claim.drained->counts) counts.push_back(count);
      group.cut_used[key] = *known.claim.drained;
    }
  }
  group.bases = CutOff(counts, group.bases, staying);
  if (group.inherited) group.formation = std::max(group.formation, formation_floor_);
  group.formation = Formation{group.formation.value + 1};
  for (const ClaimKey& key : MembersOf(group)) {
    KnownClaim& known = *Find(key);
    if (!known.since) known.since = group.formation;
  }
  group.started = true;
  Touch(group);
  return true;
}

// Whether a member has begun executions that the last cut did not know of.
bool Rendezvous::Impl::Recounted(const ClusterGroup& group) const {
  for (const auto& [key, used] : group.cut_used) {
    const KnownClaim* known = Find(key);
    if (known == nullptr || !known->claim.drained.has_value()) continue;
    if (known->claim.drained->after == used.after && *known->claim.drained != used) return true;
  }
  return false;
}

bool Rendezvous::Impl::StepTenants(ClusterGroup& group) {
  bool ready = true;
  for (const WorkerId& id : Derived(group).workers) {
    const GroupWork* work = WorkOf(id, group.id);
    if (work == nullptr || work->formation != group.formation) {
      ready = false;
      continue;
    }
    if (work->phase == TenantPhase::kFailed) {
      End(group, GroupEvent::kFail,
          absl::Status(work->tenant_status.code(),
                       absl::StrCat("group=", Title(group.spec), " epoch=", group.epoch.value,
                                    " phase=", std::string(Name(group.state)), ": ", Named(id),
                                    " cannot serve it: ", work->tenant_status.message())));
      return false;
    }
    ready = ready && work->phase == TenantPhase::kReady;
  }
  return ready;
}

}  // namespace epd
