#include "daemon/backend/cpu/move_turns.h"

namespace epd {
namespace {

// The first one behind `last`, in a ring.
template <typename Map>
typename Map::iterator Behind(Map& map, const typename Map::key_type& last) {
  const auto next = map.upper_bound(last);
  return next == map.end() ? map.begin() : next;
}

}  // namespace

void MoveTurns::Add(MoveId id, uint32_t uid, uint64_t group_id) {
  owners_[id] = {uid, group_id};
  users_[uid].groups[group_id].push_back(id);
}

bool MoveTurns::Remove(MoveId id) {
  const auto owner = owners_.find(id);
  if (owner == owners_.end()) return false;
  const auto user = users_.find(owner->second.first);
  const auto group = user->second.groups.find(owner->second.second);
  owners_.erase(owner);
  std::erase(group->second, id);
  if (group->second.empty()) user->second.groups.erase(group);
  if (user->second.groups.empty()) users_.erase(user);
  return true;
}

MoveId MoveTurns::Next() {
  const auto user = Behind(users_, last_uid_);
  last_uid_ = user->first;
  const auto group = Behind(user->second.groups, user->second.last_group);
  user->second.last_group = group->first;
  return group->second.front();
}

}  // namespace epd
