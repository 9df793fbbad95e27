#include "daemon/control/node/membership_uids.h"

#include "absl/strings/str_cat.h"

namespace epd {
namespace {

// Ranks of a tenant map each other's staging.
absl::Status CheckOwner(const Memberships& all, const JoinRequested& event, uint32_t uid) {
  for (const auto& [key, member] : all) {
    const GroupSpec& spec = member.claim.spec;
    if (!member.held() || member.uid == uid || Title(spec) != Title(event.spec)) continue;
    return absl::PermissionDeniedError(
        absl::StrCat("group=", Title(spec), ": its members on this node are of uid ", member.uid,
                     " (pid ", member.claim.pid, "), this client is of uid ", uid,
                     ", and would read their rows; join as another tenant or another group"));
  }
  return absl::OkStatus();
}

absl::Status CheckRoom(const Memberships& all, const JoinRequested& event, uint32_t uid) {
  UidShare more = {
      .groups = 1, .ranks = event.ranks.size(), .table_entries = event.spec.expert_owner.size()};
  for (const auto& [key, member] : all) {
    const bool known =
        member.held() && member.uid == uid && member.claim.spec.name == event.spec.name;
    if (known) more.groups = 0;
  }
  const absl::Status room = CheckShare(uid, UsesOf(all)[uid], more, event.limits.per_uid);
  if (room.ok()) return room;
  return absl::Status(room.code(), absl::StrCat("group=", Title(event.spec), ": ", room.message()));
}

}  // namespace

absl::Status CheckUid(const Memberships& all, const JoinRequested& event, uint32_t uid) {
  const absl::Status owner = CheckOwner(all, event, uid);
  return owner.ok() ? CheckRoom(all, event, uid) : owner;
}

std::map<uint32_t, UidUse> UsesOf(const Memberships& all) {
  std::map<uint32_t, UidUse> uses;
  std::set<std::pair<uint32_t, std::string>> of_uid;
  std::set<std::pair<int32_t, std::string>> of_pid;
  for (const auto& [key, member] : all) {
    const std::string& group = member.claim.spec.name;
    UidUse& use = uses[member.uid];
    UidShare& share = use.of_pid[member.claim.pid];
    if (member.held() && of_uid.emplace(member.uid, group).second) ++use.all.groups;
    if (member.held() && of_pid.emplace(member.claim.pid, group).second) ++share.groups;
    for (UidShare* sum : {&use.all, &share}) {
      sum->ranks += member.claim.ranks.size();
      sum->table_entries += member.claim.spec.expert_owner.size();
    }
  }
  return uses;
}

std::set<std::string> GroupNames(const Memberships& all) {
  std::set<std::string> names;
  for (const auto& [key, member] : all) {
    if (member.held()) names.insert(member.claim.spec.name);
  }
  return names;
}

}  // namespace epd
