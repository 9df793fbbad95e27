// Ends what a dead worker has left open, of all sessions, in turns.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/node/workers/poisoner.h"

namespace epd {

// Thousands of calls may be open, and each costs some microseconds: between two turns the control thread does what others wait
// for. Control thread only.
class PoisonPass {
 public:
  // Slots that a turn looks at, a group without any as one, and up to the end of a group of them.
  static constexpr uint64_t kLookedInTurn = 512;

  // Goes on behind the last turn. `targets`, in the order of their sessions, may be others than then: who is gone is left out,
  // and who is new waits for the next pass: sessions that come and go keep none from its end. True: all have been looked at,
  // and the next turn begins anew.
  bool Turn(const std::vector<PoisonTarget>& targets, const shm::RecordsView& records,
            const PoisonCause& cause, Poisoned& poisoned);
  void BeginAnew() { *this = PoisonPass(); }

 private:
  SessionId last_;      // Of those that were there when the pass began; zero: it has not.
  SessionId session_;   // Goes on with this one
  uint32_t group_ = 0;  // ... from this group of its slots on.
};

}  // namespace epd
