// Whose submissions a turn of the worker takes: each user's in turn, and of a user each session's, of none more than others
// can wait for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "daemon/worker/engine/effects.h"
#include "daemon/worker/shell/session_slots.h"

namespace epd {

using SessionTable = std::map<SessionId, SessionSlots>;

class SessionScan {
 public:
  // What a session is looked at for before the next one is, up to the end of a group of 64 slots.
  static constexpr int kTakenOfSession = 64;
  // What is taken before the worker answers, and looks at deadlines and at epd.
  static constexpr int kTakenOfTurn = 512;

  // `slots` outlives its place here. A session that is here already gets these slots.
  void Add(SessionId session, uint32_t uid, SessionSlots& slots);
  void Remove(SessionId session);

  // Claims armed submissions and hands them to `take`; with none, nothing was armed. Returns who cannot be served any longer,
  // each once.
  std::vector<EvictSession> Take(const SessionSlots::Taker& take);

 private:
  // The sessions of one user. Who comes while a round goes on waits for the next one: ids only grow, and those who come and go
  // could otherwise keep it from ever coming back to the first.
  struct Ring {
    std::map<SessionId, SessionSlots*> sessions;  // Never empty.
    SessionId next;
    SessionId last_of_round;
    size_t left = 0;  // Looks in this turn.

    // So many looks see each session.
    size_t NumLooks() const {
      const bool has_new = sessions.rbegin()->first > last_of_round;
      return sessions.size() * (has_new ? 2 : 1);
    }
    std::pair<const SessionId, SessionSlots*>& Next();
  };

  std::map<uint32_t, Ring> rings_;  // By uid.
  std::map<SessionId, uint32_t> uids_;
  uint32_t next_uid_ = 0;  // Whose session is the first of the next turn.
};

}  // namespace epd
