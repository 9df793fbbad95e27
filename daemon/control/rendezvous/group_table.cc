#include "daemon/control/rendezvous/group_table.h"

#include "absl/strings/str_cat.h"
#include "daemon/core/check.h"
#include "daemon/core/resumable.h"

namespace epd {

ClusterGroup* GroupTable::Find(GroupId id) {
  const auto it = groups_.find(id);
  return it == groups_.end() ? nullptr : &it->second;
}

ClusterGroup* GroupTable::ByName(const std::string& name, const std::string& tenant) {
  const auto it = names_.find({name, tenant});
  return it == names_.end() ? nullptr : &groups_.at(it->second);
}

std::vector<ClusterGroup*> GroupTable::Tenants(const std::string& name) {
  std::vector<ClusterGroup*> out;
  for (auto it = names_.lower_bound({name, ""}); it != names_.end() && it->first.first == name;
       ++it) {
    out.push_back(&groups_.at(it->second));
  }
  return out;
}

ClusterCommunicator& GroupTable::Communicator(const ClusterGroup& group) {
  return communicators_.at(group.spec.name);
}

const ClusterCommunicator& GroupTable::Communicator(const ClusterGroup& group) const {
  return communicators_.at(group.spec.name);
}

std::set<GroupId> GroupTable::OfNode(const NodeId& node) const {
  std::set<GroupId> out;
  for (const auto& [key, known] : claims_.OfNode(node)) {
    if (known.disposition == ClaimDisposition::kGranted) out.insert(known.group);
  }
  for (const auto& [id, group] : groups_) {
    if (!Communicator(group).WorkersOn(node).empty()) out.insert(id);
  }
  return out;
}

DerivedFromHolders& GroupTable::Derived(ClusterGroup& group) const {
  if (group.ranks.derived.has_value()) return *group.ranks.derived;
  DerivedFromHolders& derived = group.ranks.derived.emplace();
  std::vector<RankHolder> members;
  for (const auto& [rank, key] : group.ranks.holders) {
    members.push_back(claims_.Holder(key, rank));
    // Neighbours are mostly served by one worker.
    const size_t n = members.size();
    if (n < 2 || members[n - 2].server() != members[n - 1].server())
      derived.workers.insert(members.back().server());
  }
  derived.members = std::move(members);
  return derived;
}

absl::Time GroupTable::Deadline(const ClusterGroup& group) const {
  absl::Time deadline = group.deadline;
  if (group.state != GroupState::kForming && group.state != GroupState::kBootstrapping)
    return deadline;
  for (const auto& [rank, key] : group.ranks.holders)
    deadline = std::min(deadline, claims_.At(key).deadline);
  return deadline;
}

GroupId GroupTable::FreshId(GroupId proposed) {
  uint64_t mixed = proposed.value;
  for (const uint64_t salt : {coordinator_.value, next_group_++}) {
    mixed = (mixed ^ salt) + 0x9e3779b97f4a7c15;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    mixed ^= mixed >> 31;
  }
  return GroupId{mixed == 0 || Has(GroupId{mixed}) ? mixed + 1 : mixed};
}

ClusterGroup& GroupTable::Create(GroupId id, const GroupSpec& spec, bool orchestrated) {
  ClusterGroup& group = groups_[id];
  EPD_CHECK(!group.id);
  group.id = id;
  group.spec = spec;
  group.orchestrated = orchestrated;
  group.since = changes_.now();
  names_[{spec.name, spec.tenant}] = id;
  const auto [communicator, fresh] = communicators_.try_emplace(spec.name);
  if (fresh) communicator->second.id = FreshId(id);
  changes_.Add({.group = id, .name = Title(spec), .event = GroupEvent::kComplete});
  Touch(group);
  return group;
}

void GroupTable::Grant(ClusterGroup& group, const ClaimKey& key) {
  claims_.Grant(key, group.id);
  group.ranks.derived.reset();
  for (const Rank rank : claims_.At(key).claim.ranks) {
    const bool fresh = group.ranks.holders.emplace(rank, key).second;
    EPD_CHECK(fresh);
    group.ranks.dead.erase(rank);
  }
  if (group.state != GroupState::kForming) return Touch(group);
  // The others hear of a newcomer with the answer to their next report: it changes nothing for them.
  changes_.MarkGroup(group.id);
  changes_.MarkNode(key.node);
}

void GroupTable::Release(const ClaimKey& key, ClaimFate fate, const absl::Status& cause) {
  const KnownClaim* known = claims_.Find(key);
  if (known == nullptr || known->disposition == ClaimDisposition::kFailed) return;
  if (known->disposition == ClaimDisposition::kWaiting) return claims_.Fail(key, cause);
  const bool left = fate == ClaimFate::kLeft;
  ClusterGroup& group = groups_.at(known->group);
  group.ranks.derived.reset();
  std::string who;
  for (const Rank rank : known->claim.ranks) {
    const RankHolder holder = claims_.Holder(key, rank);
    absl::StrAppend(&who, who.empty() ? "" : "; ", Describe(holder, left ? "left" : "gone"),
                    " node=", holder.node.value);
    group.ranks.holders.erase(rank);
    group.ranks.dead[rank] = {holder, changes_.now()};
  }
  const bool first_to_leave = left && known->served && !group.ranks.no_replacement;
  if (first_to_leave) group.ranks.no_replacement = true;
  claims_.Fail(key, cause);
  const absl::Status why = absl::UnavailableError(
      absl::StrCat(Label(group), ": ", who, left ? " has left" : " is gone",
                   cause.ok() ? "" : absl::StrCat(" (", cause.message(), ")"),
                   left ? "; finalise and join again" : "; replace it or join again"));
  EndFormation(group, why);
  if (group.state != GroupState::kDraining) group.deadline = absl::InfiniteFuture();
  Fire(group, GroupEvent::kRankLost, why);
  if (first_to_leave && group.state != GroupState::kDraining) GiveBackUnanswered(group);
}

void GroupTable::GiveBackUnanswered(ClusterGroup& group) {
  for (const ClaimKey& key : group.ranks.members()) {
    const KnownClaim& known = claims_.At(key);
    if (!known.unanswered()) continue;
    for (const Rank rank : known.claim.ranks) group.ranks.holders.erase(rank);
    group.ranks.derived.reset();
    claims_.GiveBack(key, "a rank has left, the others must end first");
  }
}

void GroupTable::DropNode(const NodeId& node, const absl::Status& cause) {
  for (auto& [id, group] : groups_) EndWithNode(group, node, cause);
  std::vector<ClaimKey> of_node;
  for (const auto& [key, known] : claims_.OfNode(node)) of_node.push_back(key);
  for (const ClaimKey& key : of_node) {
    Release(key, ClaimFate::kGone, cause);
    claims_.Erase(key);
  }
  for (auto& [id, group] : groups_) {
    ClusterCommunicator& communicator = Communicator(group);
    if (communicator.WorkersOn(node).empty()) continue;
    communicator.stale = true;
    Touch(group);
  }
}

void GroupTable::EndWithNode(ClusterGroup& group, const NodeId& node, const absl::Status& cause) {
  std::vector<Rank> ranks;
  std::string host;
  for (const auto& [rank, key] : group.ranks.holders) {
    if (key.node != node) continue;
    ranks.push_back(rank);
    host = claims_.Holder(key, rank).host;
  }
  if (ranks.empty()) return;
  EndFormation(group, absl::UnavailableError(absl::StrCat(
                          Label(group), ": node ", node.value, " host=", host, ", which holds ",
                          ranks.size() == 1 ? "rank=" : "ranks=", DescribeRanks(ranks),
                          ", is gone: ", cause.message(), "; replace its ranks or join again")));
}

void GroupTable::Fire(ClusterGroup& group, GroupEvent event, const absl::Status& why) {
  const std::optional<GroupState> next = kGroupTransitions.Next(group.state, event);
  EPD_CHECK(next.has_value());
  changes_.Add(
      {group.id, Title(group.spec), group.epoch, group.formation, group.state, *next, why, event});
  if (group.state != *next) group.since = changes_.now();
  group.state = *next;
  Touch(group);
}

void GroupTable::Serve(ClusterGroup& group) {
  group.deadline = absl::InfiniteFuture();
  group.cause = absl::OkStatus();
  group.served = group.formation;
  group.inherited.recovered = false;
  Fire(group, GroupEvent::kServing, absl::OkStatus());
}

void GroupTable::EndFormation(ClusterGroup& group, const absl::Status& cause) {
  const bool served =
      group.state != GroupState::kForming && group.state != GroupState::kBootstrapping;
  if (!served || group.cause.ok()) group.cause = cause;
  group.cut.cause = group.cause;
  if (group.state != GroupState::kDraining) group.started = false;
  Touch(group);
}

void GroupTable::End(ClusterGroup& group, GroupEvent event, const absl::Status& status,
                     const absl::Status& for_orders) {
  const absl::Status error = status.ok()
                                 ? absl::UnavailableError(absl::StrCat("group=", Title(group.spec),
                                                                       ": its last member is gone"))
                                 : status;
  Touch(group);
  const std::set<ClaimKey> members = group.ranks.members();
  const bool forms_again = group.orchestrated && event == GroupEvent::kFail;
  if (forms_again) {
    Reset(group, error);
  } else {
    Fire(group, event, error);
  }
  for (const ClaimKey& key : members) claims_.Fail(key, error);
  if (forms_again) return;
  changes_.AddEnded({group.id, for_orders});
  const std::string name = group.spec.name;
  floors_.Close(name, Communicator(group).epoch);
  TouchTenants(group);
  names_.erase({name, group.spec.tenant});
  groups_.erase(group.id);
  if (Tenants(name).empty()) {
    communicators_.erase(name);
  } else {
    DropUnusedEpoch(name);
  }
}

void GroupTable::DropUnusedEpoch(const std::string& name) {
  for (const ClusterGroup* tenant : Tenants(name)) {
    if (tenant->state != GroupState::kForming) return;
  }
  ClusterCommunicator& communicator = communicators_.at(name);
  const Epoch epoch = communicator.epoch;
  communicator.Clear();
  communicator.epoch = epoch;
  communicator.stale = true;
}

void GroupTable::EndDrained(ClusterGroup& group, const absl::Status& for_orders) {
  if (IsResumable(group.cause)) {
    const absl::Status stops = group.cause;
    return End(group, GroupEvent::kFail, stops, for_orders);
  }
  End(group, GroupEvent::kClose,
      absl::FailedPreconditionError(
          absl::StrCat(Label(group), " was drained and closed by an operator; join again")),
      for_orders);
}

void GroupTable::Reset(ClusterGroup& group, const absl::Status& error) {
  const absl::Status why = error;  // Perhaps the group's own.
  group.cause = absl::OkStatus();
  EndFormation(group, why);
  group.ranks = GroupRanks{};
  group.cut.bases.clear();
  group.cut.drained.clear();
  group.cut.before.clear();
  group.deadline = absl::InfiniteFuture();
  group.inherited.recovered = false;
  Fire(group, GroupEvent::kEmptied, why);
  DropUnusedEpoch(group.spec.name);
}

void GroupTable::Touch(const ClusterGroup& group) {
  changes_.MarkGroup(group.id);
  changes_.MarkName(group.spec.name);
  for (const auto& [rank, key] : group.ranks.holders) changes_.MarkNode(key.node);
  for (const auto& [worker, run] : Communicator(group).workers) changes_.MarkNode(worker.node);
}

void GroupTable::TouchTenants(const ClusterGroup& group) {
  for (const ClusterGroup* tenant : Tenants(group.spec.name)) Touch(*tenant);
}

}  // namespace epd
