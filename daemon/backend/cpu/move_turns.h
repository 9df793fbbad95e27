// Which large move goes on next: users in turn, of a user the groups, of a group its moves in order.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <utility>

#include "daemon/backend/move_job.h"

namespace epd {

// However many moves and groups a user has, another one's move waits for one turn of it. Not thread-safe.
class MoveTurns {
 public:
  void Add(MoveId id, uint32_t uid, uint64_t group_id);
  // It has no more turns. Whether it had any.
  bool Remove(MoveId id);
  bool empty() const { return users_.empty(); }
  // Whose turn is next; it stays until Remove. Of some, not of none.
  MoveId Next();

 private:
  struct User {
    std::map<uint64_t, std::deque<MoveId>> groups;  // By id; none is empty.
    uint64_t last_group = 0;
  };

  std::map<uint32_t, User> users_;  // By uid; none without groups.
  uint32_t last_uid_ = 0;
  std::map<MoveId, std::pair<uint32_t, uint64_t>> owners_;  // The uid and the group's id.
};

}  // namespace epd
