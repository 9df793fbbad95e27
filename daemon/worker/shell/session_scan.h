// Whose submissions a turn of the worker takes: each session's in turn, of none more than others can wait for.
#pragma once

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

  // Claims armed submissions and hands them to `take`; with none, nothing was armed. Returns who cannot be served any longer,
  // each once.
  std::vector<EvictSession> Take(SessionTable& sessions, const SessionSlots::Taker& take);

 private:
  SessionId next_;  // With which the next turn begins, or the one behind it.
};

}  // namespace epd
