// All interleavings of the actors around one slot: client, worker, its ghost, poisoners.
//
// The model runs the real transitions of slot_word.h on a real word, one atomic step at a time, and
// adds what lies around it: the `armed` mark, `asleep` with the eventfd, `sleeping` with the futex.
// Stores that only a fence makes visible wait in a buffer that drains at any time.
#pragma once

#include <cstdint>
#include <string>

namespace epd {

// One change of the protocol each; the walk must find what it breaks.
enum class PlantedBug {
  kNone,
  kReusedIds,             // A replacement worker starts its claim ids from the beginning.
  kAnswerWithoutCompare,  // Answers are stores.
  kSeparateEpoch,         // Answers are stores, after a look at an epoch word beside the slot.
  kNoRescan,              // The worker sleeps without looking again after setting `asleep`.
  kRingBeforeArm,         // The client reads `asleep` before it arms.
  kNoFenceAsleep,         // The worker does not fence between `asleep` and its last look.
  kNoFenceSleeping,       // The client does not fence between `sleeping` and its last look.
  kWakeBeforeAnswer,      // The worker reads `sleeping` before it answers.
  kNoPoisonAfterDeath,    // epd does not answer for a dead worker.
  kNoWakeAfterDeath,      // epd wakes nobody whose use the dead worker had answered.
  kPoisonWithoutCompare,  // Poison is a store.
};

struct WalkResult {
  std::string violation;  // Empty: all invariants hold in all states.
  uint64_t num_states = 0;
  uint64_t num_ends = 0;  // States in which nobody can do anything more.
};

// Walks every state that `num_uses` consecutive uses can reach while the worker is killed at most
// once, its ghost answers at any later time, and epd and the client's watchdog poison at most
// `num_poisons` times beyond what the death asks for. Invariants, in every state:
//   - a use is ended by the claimer of that very use, or by a poison that saw that very use (an
//     unclaimed word says nothing about its use, so such a poison may end any unclaimed one);
//   - a claim takes a use that nobody else holds;
//   - when nobody can move, the client has got an answer to each of its uses (so no wake was lost).
WalkResult WalkSlotWord(int num_uses, int num_poisons, PlantedBug bug);

}  // namespace epd
