// Which claim becomes a member of which group.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/control/rendezvous_impl.h"
#include "daemon/core/check.h"

namespace epd {
namespace {

size_t IndexOf(const Claim& claim, Rank rank) {
  return static_cast<size_t>(std::find(claim.ranks.begin(), claim.ranks.end(), rank) -
                             claim.ranks.begin());
}

}  // namespace

void Rendezvous::Impl::Settle() {
  while (!dirty_groups_.empty() || !dirty_names_.empty()) {
    while (!dirty_groups_.empty()) {
      const GroupId id = *dirty_groups_.begin();
      dirty_groups_.erase(dirty_groups_.begin());
      const auto it = groups_.find(id);
      if (it != groups_.end()) Advance(it->second);
    }
    if (!dirty_names_.empty()) {
      const std::string name = *dirty_names_.begin();
      dirty_names_.erase(dirty_names_.begin());
      PlaceWaiting(name);
    }
  }
}

void Rendezvous::Impl::PlaceWaiting(const std::string& name) {
  const auto it = waiting_.find(name);
  if (it == waiting_.end()) return;
  const auto keys = it->second;  // Placing changes the set.
  for (const auto& [arrival, key] : keys) {
    const KnownClaim* known = Find(key);
    if (known != nullptr && known->disposition == ClaimDisposition::kWaiting) Place(key);
  }
}

void Rendezvous::Impl::Place(const ClaimKey& key) {
  const Claim& claim = Find(key)->claim;
  const absl::Status stale = absl::AbortedError(
      absl::StrCat("group=", Title(claim.spec), " ranks ", DescribeRanks(claim.ranks),
                   ": the coordinator gave this membership up while node ", key.node.value,
                   " was out of reach; ", "join again"));
  if (claim.group && claim.granted_by == options_.incarnation) {
    RememberStale(key);
    Fail(key, stale);
    return;
  }
  if (claim.group && claim.joined) {
    Recover(key);
    return;
  }
  if (InGrace()) {
    Wait(key, "the coordinator has just started and listens to the nodes first");
    return;
  }
  ClusterGroup* group = ByName(claim.spec.name, claim.spec.tenant);
  if (group == nullptr) {
    for (const ClusterGroup* other : TenantsOf(claim.spec.name)) {
      if (Contract(other->spec) == Contract(claim.spec)) continue;
      Fail(key, TenantSpecError(PlacementOf(key, claim.ranks.front()), claim.spec, other->spec));
      return;
    }
    Grant(Create(FreshId(claim.proposed), claim.spec, /*orchestrated=*/false), key);
    return;
  }
  if (group->state == GroupState::kDraining) {
    Fail(key, absl::FailedPreconditionError(
                  absl::StrCat("group=", Title(claim.spec), " epoch=", group->epoch.value,
                               " phase=draining: takes no new members; join once it is "
                               "closed")));
    return;
  }
  if (claim.spec.instance != group->spec.instance) {
    Wait(key, absl::StrCat("instance \"", group->spec.instance, "\" of the group, ",
                           std::string(Name(group->state)),
                           ", must end first: ", DescribeAll(HoldersOf(*group, {}))));
    return;
  }
  if (group->state == GroupState::kForming) {
    PlaceIntoForming(*group, key);
  } else {
    PlaceIntoFormed(*group, key);
  }
}

// A member of a group that a predecessor of this coordinator formed.
void Rendezvous::Impl::Recover(const ClaimKey& key) {
  const Claim& claim = Find(key)->claim;
  ClusterGroup* group = ByName(claim.spec.name, claim.spec.tenant);
  const bool restored = group != nullptr && group->orchestrated && !group->recovered &&
                        group->state == GroupState::kForming && group->holders.empty() &&
                        group->id == claim.group && group->spec == claim.spec;
  if (group == nullptr || restored) {
    if (group == nullptr) group = &Create(claim.group, claim.spec, /*orchestrated=*/false);
    group->inherited = true;
    group->recovered = true;
    group->adoptable = adopting_;
    group->deadline = now_ + claim.spec.deadlines.form;
    Fire(*group, GroupEvent::kRecovered,
         absl::AbortedError(
             absl::StrCat("group=", Title(claim.spec), ": the coordinator was restarted")));
  }
  const bool fits = group->id == claim.group && group->recovered &&
                    group->state == GroupState::kReforming && !group->started &&
                    claim.spec == group->spec && HoldersOf(*group, claim.ranks).empty();
  if (!fits) {
    RememberStale(key);
    Fail(key, absl::AbortedError(absl::StrCat("group=", Title(claim.spec),
                                              " was formed anew after the coordinator ",
                                              "was restarted; join again")));
    return;
  }
  group->formation = std::max(group->formation, claim.joined);
  KnownClaim& known = *Find(key);
  known.since = claim.joined;
  known.served = true;
  Grant(*group, key);
}

void Rendezvous::Impl::PlaceIntoForming(ClusterGroup& group, const ClaimKey& key) {
  const Claim& claim = Find(key)->claim;
  if (claim.spec != group.spec) {
    std::vector<SpecBrought> brought;
    for (const ClaimKey& member : MembersOf(group)) {
      const Claim& other = Find(member)->claim;
      brought.push_back({PlacementOf(member, other.ranks.front()), other.ranks, other.spec});
    }
    brought.push_back({PlacementOf(key, claim.ranks.front()), claim.ranks, claim.spec});
    const absl::Status error = SpecMismatchError(group.spec, brought);
    Fail(key, error);
    End(group, GroupEvent::kFail, error);
    return;
  }
  for (const Rank rank : claim.ranks) {
    const auto holder = group.holders.find(rank);
    if (holder == group.holders.end()) continue;
    const absl::Status error = RankClaimedTwiceError(group.spec, PlacementOf(holder->second, rank),
                                                     PlacementOf(key, rank));
    Fail(key, error);
    End(group, GroupEvent::kFail, error);
    return;
  }
  Grant(group, key);
}

void Rendezvous::Impl::PlaceIntoFormed(ClusterGroup& group, const ClaimKey& key) {
  const Claim& claim = Find(key)->claim;
  std::vector<RankPhase> held = HoldersOf(group, claim.ranks);
  const bool settled =
      group.state == GroupState::kReady || group.state == GroupState::kBootstrapping;
  if (settled) {
    if (held.empty()) held = HoldersOf(group, {});  // Another number of ranks.
    Fail(key, RankHeldError(group.spec, group.epoch, held, Differences(claim.spec, group.spec)));
    return;
  }
  if (group.no_replacement) {
    Wait(key, absl::StrCat("a rank has left, the others must end first: ",
                           DescribeAll(HoldersOf(group, {}))));
  } else if (claim.spec != group.spec) {
    Wait(key, absl::StrCat("the group has another spec, its members must end first: ",
                           DescribeAll(HoldersOf(group, {}))));
  } else if (!held.empty()) {
    Wait(key, absl::StrCat("held by ", DescribeAll(held)));
  } else if (group.started) {
    Wait(key, "the group is being set up");
  } else {
    Grant(group, key);
  }
}

void Rendezvous::Impl::Grant(ClusterGroup& group, const ClaimKey& key) {
  KnownClaim& known = *Find(key);
  known.disposition = ClaimDisposition::kGranted;
  known.group = group.id;
  known.status = absl::OkStatus();
  waiting_[known.claim.spec.name].erase({known.arrival, key});
  if (waiting_[known.claim.spec.name].empty()) waiting_.erase(known.claim.spec.name);
  group.derived.reset();
  for (const Rank rank : known.claim.ranks) {
    const bool fresh = group.holders.emplace(rank, key).second;
    EPD_CHECK(fresh);
    group.dead.erase(rank);
  }
  if (group.state != GroupState::kForming) return Touch(group);
  // The others hear of a newcomer with the answer to their next report: it changes nothing for them.
  dirty_groups_.insert(group.id);
  dirty_nodes_.insert(key.node);
}

void Rendezvous::Impl::Wait(const ClaimKey& key, const std::string& what_for) {
  KnownClaim& known = *Find(key);
  const absl::Status status = absl::UnavailableError(what_for);
  if (known.status == status) return;
  known.status = status;
  dirty_nodes_.insert(key.node);
}

void Rendezvous::Impl::Fail(const ClaimKey& key, const absl::Status& status) {
  KnownClaim& known = *Find(key);
  if (known.disposition == ClaimDisposition::kWaiting) {
    const auto it = waiting_.find(known.claim.spec.name);
    if (it != waiting_.end()) {
      it->second.erase({known.arrival, key});
      if (it->second.empty()) waiting_.erase(it);
    }
  }
  known.disposition = ClaimDisposition::kFailed;
  known.status = status.ok() ? absl::CancelledError("released") : status;
  dirty_nodes_.insert(key.node);
}

// Random when `proposed` is, and never the same twice: a claim that is placed anew after its node
// was out of reach proposes what it proposed before.
GroupId Rendezvous::Impl::FreshId(GroupId proposed) {
  uint64_t mixed = proposed.value;
  for (const uint64_t salt : {options_.incarnation.value, next_group_++}) {
    mixed = (mixed ^ salt) + 0x9e3779b97f4a7c15;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    mixed ^= mixed >> 31;
  }
  return GroupId{mixed == 0 || groups_.count(GroupId{mixed}) > 0 ? mixed + 1 : mixed};
}

ClusterGroup& Rendezvous::Impl::Create(GroupId id, const GroupSpec& spec, bool orchestrated) {
  ClusterGroup& group = groups_[id];
  EPD_CHECK(!group.id);
  group.id = id;
  group.spec = spec;
  group.orchestrated = orchestrated;
  group.since = now_;
  by_name_[{spec.name, spec.tenant}] = id;
  const auto [communicator, fresh] = communicators_.try_emplace(spec.name);
  if (fresh) communicator->second.id = FreshId(id);
  effects_.push_back(GroupTransition{id, Title(spec), group.epoch, group.formation,
                                     GroupState::kCount, GroupState::kForming,
                                     GroupEvent::kComplete, absl::OkStatus()});
  Touch(group);
  return group;
}

std::vector<RankPhase> Rendezvous::Impl::HoldersOf(const ClusterGroup& group,
                                                   const std::vector<Rank>& ranks) const {
  std::vector<RankPhase> out;
  for (const auto& [rank, key] : group.holders) {
    if (!ranks.empty() && std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) continue;
    out.push_back(
        {PlacementOf(key, rank), PhaseOf(group, rank), now_ - NodeOf(key.node)->last_seen});
  }
  return out;
}

KnownClaim* Rendezvous::Impl::Find(const ClaimKey& key) {
  return const_cast<KnownClaim*>(static_cast<const Impl*>(this)->Find(key));
}

const KnownClaim* Rendezvous::Impl::Find(const ClaimKey& key) const {
  const auto node = nodes_.find(key.node);
  if (node == nodes_.end() || node->second.incarnation != key.incarnation) return nullptr;
  const auto claim = node->second.claims.find({key.session, key.request});
  return claim == node->second.claims.end() ? nullptr : &claim->second;
}

absl::Status Rendezvous::Impl::ComparePlaces(const ClusterGroup& group,
                                             const ClusterGroup& other) const {
  for (const auto& [rank, key] : other.holders) {
    const ClaimKey& mine = group.holders.at(rank);
    if (mine.node == key.node && WorkerOf(mine, rank) == WorkerOf(key, rank)) continue;
    return TenantWorkerError(group.spec, PlacementOf(mine, rank), PlacementOf(key, rank),
                             other.spec.tenant);
  }
  return absl::OkStatus();
}

absl::Status Rendezvous::Impl::CompareRanks(const ClusterGroup& group) const {
  const auto& [first, holder] = *group.holders.begin();
  const bool on_gpu = WorkerOf(holder, first).on_gpu();
  for (const auto& [rank, key] : group.holders) {
    if (WorkerOf(key, rank).on_gpu() == on_gpu) continue;
    return MixedWorkersError(group.spec, PlacementOf(key, rank), PlacementOf(holder, first));
  }
  return absl::OkStatus();
}

const KnownNode* Rendezvous::Impl::NodeOf(const NodeId& id) const {
  const auto it = nodes_.find(id);
  return it == nodes_.end() ? nullptr : &it->second;
}

const WorkerReport& Rendezvous::Impl::ReportOf(const NodeId& id, const WorkerName& name) const {
  static const WorkerReport& down = *new WorkerReport();
  const KnownNode* node = NodeOf(id);
  if (node == nullptr) return down;
  const auto it = node->workers.find(name);
  return it == node->workers.end() ? down : it->second;
}

const GroupWork* Rendezvous::Impl::WorkOf(const WorkerId& id, GroupId group) const {
  const KnownNode* node = NodeOf(id.node);
  if (node == nullptr) return nullptr;
  const auto it = node->work.find({group, id.name});
  return it == node->work.end() ? nullptr : &it->second;
}

ClusterGroup* Rendezvous::Impl::ByName(const std::string& name, const std::string& tenant) {
  const auto it = by_name_.find({name, tenant});
  return it == by_name_.end() ? nullptr : &groups_.at(it->second);
}

std::vector<ClusterGroup*> Rendezvous::Impl::TenantsOf(const std::string& name) {
  std::vector<ClusterGroup*> out;
  for (auto it = by_name_.lower_bound({name, ""}); it != by_name_.end() && it->first.first == name;
       ++it) {
    out.push_back(&groups_.at(it->second));
  }
  return out;
}

ClusterCommunicator& Rendezvous::Impl::CommunicatorOf(const ClusterGroup& group) {
  return communicators_.at(group.spec.name);
}

const ClusterCommunicator& Rendezvous::Impl::CommunicatorOf(const ClusterGroup& group) const {
  return communicators_.at(group.spec.name);
}

RankHolder Rendezvous::Impl::PlacementOf(const ClaimKey& key, Rank rank) const {
  const KnownClaim* known = Find(key);
  EPD_CHECK(known != nullptr);
  RankHolder out;
  out.rank = rank;
  out.node = key.node;
  out.session = key.session;
  const size_t index = IndexOf(known->claim, rank);
  out.arena_index = static_cast<uint32_t>(index);
  out.worker = known->claim.WorkerOf(index);
  out.host = known->claim.host;
  out.pid = known->claim.pid;
  out.client_name = known->claim.client_name;
  out.client_version = known->claim.client_version;
  return out;
}

WorkerName Rendezvous::Impl::WorkerOf(const ClaimKey& key, Rank rank) const {
  const Claim& claim = Find(key)->claim;
  return claim.workers.size() > 1 ? claim.WorkerOf(IndexOf(claim, rank)) : claim.WorkerOf(0);
}

void Rendezvous::Impl::BindWorkers(const ClusterGroup& group,
                                   ClusterCommunicator& communicator) const {
  for (const auto& [rank, key] : group.holders) {
    const WorkerId worker{key.node, WorkerOf(key, rank)};
    communicator.workers[worker] = {NodeOf(key.node)->incarnation, ReportOf(worker).incarnation};
    communicator.places[rank] = worker;
  }
}

std::set<ClaimKey> Rendezvous::Impl::MembersOf(const ClusterGroup& group) const {
  std::set<ClaimKey> out;
  for (const auto& [rank, key] : group.holders) out.insert(key);
  return out;
}

absl::Time Rendezvous::Impl::FormingDeadline(const ClusterGroup& group) const {
  absl::Time deadline = absl::InfiniteFuture();
  if (group.state != GroupState::kForming && group.state != GroupState::kBootstrapping)
    return deadline;
  for (const auto& [rank, key] : group.holders) deadline = std::min(deadline, Find(key)->deadline);
  return deadline;
}

void Rendezvous::Impl::Touch(const ClusterGroup& group) {
  dirty_groups_.insert(group.id);
  dirty_names_.insert(group.spec.name);
  for (const auto& [rank, key] : group.holders) dirty_nodes_.insert(key.node);
  for (const auto& [worker, run] : CommunicatorOf(group).workers) dirty_nodes_.insert(worker.node);
}

void Rendezvous::Impl::TouchTenants(const ClusterGroup& group) {
  for (const ClusterGroup* tenant : TenantsOf(group.spec.name)) Touch(*tenant);
}

}  // namespace epd
