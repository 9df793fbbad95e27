// All interleavings of one call that ranks make directly, with the worker, its ghost, epd, deaths and a hostile peer.
//
// The model runs the real transitions of direct_area.h on real words, one atomic step at a time.
#pragma once

#include <cstdint>
#include <string>

namespace epd {

// One change of the protocol each; the walk must find what it breaks.
enum class DirectBug {
  kNone,
  kPublishWithoutCompare,  // Publications are stores.
  kGenerationNotCompared,  // A call says no generation, and a rank publishes in whichever its gate is in.
  kAnswerBeforeEnding,      // The worker answers a failure, then ends the generation.
  kEndAnnouncedOnly,        // The worker ends the gates of those alone that have announced.
  kNoEndAfterDeath,         // epd answers for a dead worker and ends nothing.
  kNoSecondLook,            // A rank that is answered with a failure believes it.
  kNoLookAtAnnounce,        // The worker does not look when a published call is announced.
  kHandsOverAfterAnnounce,  // The record says so after the announce.
  kIgnoresHandedOver,       // A rank that sees all, and a peer that handed over, tells nobody.
  kWritesBeforeRead,        // A good call's eager buffer is used again without a look at the peers.
  kWritesBeforeWithdrawn,  // A failed call's eager buffer is used again before the record is withdrawn.
  kNoLookAfterRead,        // Who has read rows does not look whether the record still stands.
};

struct DirectWalk {
  int num_ranks = 2;
  bool hostile = false;  // The last rank writes any word of its own area, at any time.
  // At any step; epd then answers in its place. Its ghost may still go on.
  bool worker_dies = false;
  bool rank_dies = false;     // One of the honest ones, at any step.
  bool worker_fails = false;  // Deadlines, drains: the worker fails the call at any time.
  DirectBug bug = DirectBug::kNone;
};

struct DirectWalkResult {
  std::string violation;  // Empty: all invariants hold in all states.
  uint64_t num_states = 0;
  uint64_t num_ends = 0;    // States in which nobody can do anything more.
  uint64_t num_good = 0;    // Ranks that have ended well there by what they saw for themselves,
  uint64_t num_failed = 0;  // ... and with a failure.
};

// Invariants, in every state:
//   - no honest rank has ended well where another honest one has ended with a failure (not with `hostile`, which may
//     break its own tenant's agreement);
//   - whoever has ended well has read every honest peer's rows of this call;
//   - when nobody can move, every living honest rank has an outcome: no wake was lost. Without `worker_fails` nobody
//     ends a wait but the peers themselves.
DirectWalkResult WalkDirectArea(const DirectWalk& walk);

}  // namespace epd
