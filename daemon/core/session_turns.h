// Whose turn it is: each user's in a round, and of a user each session's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "daemon/core/ids.h"

namespace epd {

// However many sessions a user has, another one's waits for one of them and not for all. Use: BeginTurn(), then Next() until
// there is none or the turn has lasted long enough; the next turn goes on where this one ended. A session that comes while its
// user's round goes on waits for the next round: ids only grow, and those who come and go could otherwise keep the round from
// ever coming back to the first.
class SessionTurns {
 public:
  // Nothing changes for one that is here already.
  void Add(SessionId session, uint32_t uid);
  void Remove(SessionId session);
  bool Has(SessionId session) const { return uids_.count(session) > 0; }
  bool empty() const { return uids_.empty(); }

  void BeginTurn();
  // Whose turn is next; none: each has had one since BeginTurn(). Sessions may be removed in between.
  std::optional<SessionId> Next();

 private:
  // The sessions of one user.
  struct Ring {
    std::set<SessionId> sessions;  // Never empty.
    SessionId next;
    SessionId last_of_round;
    size_t left = 0;  // Looks in this turn.

    // So many looks see each session.
    size_t NumLooks() const {
      const bool has_new = *sessions.rbegin() > last_of_round;
      return sessions.size() * (has_new ? 2 : 1);
    }
    SessionId Next();
  };

  std::map<uint32_t, Ring> rings_;  // By uid.
  std::map<SessionId, uint32_t> uids_;
  uint32_t next_uid_ = 0;  // Whose session is the first of the next turn.
  size_t left_ = 0;        // Looks in this turn, of all users.
};

}  // namespace epd
