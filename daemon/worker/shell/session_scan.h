// Whose submissions a turn of the worker takes: each user's in turn, and of a user each session's, of none more than others
// can wait for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "daemon/core/session_turns.h"
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
  // The same in ranks' parts: an operation of 1,024 ranks takes as long to open as a thousand of one rank.
  static constexpr size_t kPartsOfTurn = 64 << 10;
  // Returns how many ranks' parts it may have touched, at least 1.
  using Taker = std::function<size_t(const Submission&, const shm::SlotRequest&)>;

  // `slots` outlives its place here. A session that is here already gets these slots.
  void Add(SessionId session, uint32_t uid, SessionSlots& slots);
  void Remove(SessionId session);

  // Claims armed submissions and hands them to `take`; with none, nothing was armed. Returns who cannot be served any longer,
  // each once.
  std::vector<EvictSession> Take(const Taker& take);

 private:
  SessionTurns turns_;
  std::map<SessionId, SessionSlots*> slots_;
};

}  // namespace epd
