#include "daemon/control/node/membership_index.h"

#include "absl/strings/str_cat.h"

namespace epd {
namespace {

// Returns whether `key` is new.
template <typename Counts>
bool CountOne(Counts& counts, const typename Counts::key_type& key) {
  return ++counts[key] == 1;
}

// Returns whether it was the last.
template <typename Counts>
bool CountOff(Counts& counts, const typename Counts::key_type& key) {
  const auto found = counts.find(key);
  if (--found->second > 0) return false;
  counts.erase(found);
  return true;
}

template <typename Sets, typename Item>
void EraseFrom(Sets& sets, const typename Sets::key_type& key, const Item& item) {
  const auto found = sets.find(key);
  if (found == sets.end()) return;
  found->second.erase(item);
  if (found->second.empty()) sets.erase(found);
}

}  // namespace

void MembershipIndex::Add(const SessionMembership& member) {
  const Claim& claim = member.claim;
  const std::string& name = claim.spec.name;
  UidUse& use = uses_[member.uid];
  UidShare& share = use.of_pid[claim.pid];
  for (UidShare* sum : {&use.all, &share}) {
    sum->ranks += claim.ranks.size();
    sum->table_entries += claim.spec.expert_owner.size();
  }
  if (!member.held()) return;
  if (claim.group) groups_[claim.group].insert(KeyOf(member));
  tenants_[{name, claim.spec.tenant}].insert(KeyOf(member));
  if (CountOne(names_[name], member.uid)) ++use.all.groups;
  if (CountOne(names_of_process_[{member.uid, claim.pid}], name)) ++share.groups;
}

void MembershipIndex::Release(const SessionMembership& member) {
  const Claim& claim = member.claim;
  const std::string& name = claim.spec.name;
  UidUse& use = uses_.at(member.uid);
  EraseFrom(groups_, claim.group, KeyOf(member));
  EraseFrom(tenants_, {name, claim.spec.tenant}, KeyOf(member));
  const auto named = names_.find(name);
  if (CountOff(named->second, member.uid)) --use.all.groups;
  if (named->second.empty()) names_.erase(named);
  const auto process = names_of_process_.find({member.uid, claim.pid});
  if (CountOff(process->second, name)) --use.of_pid.at(claim.pid).groups;
  if (process->second.empty()) names_of_process_.erase(process);
}

void MembershipIndex::Forget(const SessionMembership& member) {
  const Claim& claim = member.claim;
  const auto use = uses_.find(member.uid);
  const auto share = use->second.of_pid.find(claim.pid);
  for (UidShare* sum : {&use->second.all, &share->second}) {
    sum->ranks -= claim.ranks.size();
    sum->table_entries -= claim.spec.expert_owner.size();
  }
  if (share->second.ranks == 0) use->second.of_pid.erase(share);  // Each has one.
  if (use->second.all.ranks == 0) uses_.erase(use);
}

void MembershipIndex::Move(const SessionMembership& member, GroupId now) {
  if (!member.held() || member.claim.group == now) return;
  EraseFrom(groups_, member.claim.group, KeyOf(member));
  if (now) groups_[now].insert(KeyOf(member));
}

const std::set<MembershipIndex::Key>& MembershipIndex::OfGroup(GroupId group) const {
  static const std::set<Key> none;
  const auto found = groups_.find(group);
  return found == groups_.end() ? none : found->second;
}

absl::Status MembershipIndex::CheckUid(const Memberships& all, const JoinRequested& event,
                                       uint32_t uid) const {
  const absl::Status owner = CheckOwner(all, event, uid);
  return owner.ok() ? CheckRoom(event, uid) : owner;
}

absl::Status MembershipIndex::CheckOwner(const Memberships& all, const JoinRequested& event,
                                         uint32_t uid) const {
  const auto found = tenants_.find({event.spec.name, event.spec.tenant});
  if (found == tenants_.end()) return absl::OkStatus();
  const SessionMembership& member = all.at(*found->second.begin());
  if (member.uid == uid) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("group=", Title(member.claim.spec), ": its members on this node are of uid ",
                   member.uid, " (pid ", member.claim.pid, "), this client is of uid ", uid,
                   ", and would read their rows; join as another tenant or another group"));
}

absl::Status MembershipIndex::CheckRoom(const JoinRequested& event, uint32_t uid) const {
  const auto named = names_.find(event.spec.name);
  const bool known = named != names_.end() && named->second.count(uid) > 0;
  const UidShare more = {.groups = known ? 0u : 1u,
                         .ranks = event.ranks.size(),
                         .table_entries = event.spec.expert_owner.size()};
  static const UidUse none;
  const auto use = uses_.find(uid);
  const absl::Status room =
      CheckShare(uid, use == uses_.end() ? none : use->second, more, event.limits.per_uid);
  if (room.ok()) return room;
  return absl::Status(room.code(), absl::StrCat("group=", Title(event.spec), ": ", room.message()));
}

}  // namespace epd
