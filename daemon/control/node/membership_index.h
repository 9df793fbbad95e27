// What is asked of a node's Joins as a whole, kept as they change: a node may have tens of thousands.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "daemon/control/node/session_membership.h"
#include "daemon/control/node_events.h"
#include "daemon/control/uid_limits.h"

namespace epd {

class MembershipIndex {
 public:
  using Key = Memberships::key_type;

  // A new one, held or not.
  void Add(const SessionMembership& member);
  // It is held no more; before its state says so.
  void Release(const SessionMembership& member);
  // It is forgotten; it was released before.
  void Forget(const SessionMembership& member);
  // Before its group changes to `now`, zero for none.
  void Move(const SessionMembership& member, GroupId now);

  // Held ones of a group that the coordinator has granted.
  const std::set<Key>& OfGroup(GroupId group) const;
  // Whether one of a group of this name is held; how many names there are.
  bool HasName(const std::string& group) const { return names_.count(group) > 0; }
  size_t num_names() const { return names_.size(); }
  // What each uid has of groups, ranks and tables.
  const std::map<uint32_t, UidUse>& uses() const { return uses_; }

  // Whether a session of `uid` may join. `all`: what this is the index of.
  //   PERMISSION_DENIED   sessions of another uid are this tenant here
  //   RESOURCE_EXHAUSTED  as CheckShare
  absl::Status CheckUid(const Memberships& all, const JoinRequested& event, uint32_t uid) const;

 private:
  using Process = std::pair<uint32_t, int32_t>;  // uid, pid

  static Key KeyOf(const SessionMembership& member) {
    return {member.claim.session, member.claim.request};
  }
  // Ranks of a tenant map each other's staging.
  absl::Status CheckOwner(const Memberships& all, const JoinRequested& event, uint32_t uid) const;
  absl::Status CheckRoom(const JoinRequested& event, uint32_t uid) const;

  std::map<uint32_t, UidUse> uses_;
  std::map<GroupId, std::set<Key>> groups_;
  std::map<std::pair<std::string, std::string>, std::set<Key>> tenants_;  // By name and tenant.
  std::map<std::string, std::map<uint32_t, size_t>> names_;               // How many of each uid.
  std::map<Process, std::map<std::string, size_t>> names_of_process_;
};

}  // namespace epd
