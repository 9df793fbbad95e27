// The life of a slot's word: who may change it, from what to what.
//
// The word is {ready, done}: ready in the lower 32 bits, done in the upper 32. One cycle is one submission:
//
//   client   arms     anything with ready == 0  -> {1, 0}
//   worker   claims   {1, 0}   -> {id, 0}           id >= 2, never used before in this slot
//   worker   answers  {id, 0}  -> {0, 1 + code}     code 0 is good, else an absl::StatusCode
//   epd      poisons  {1, 0} or {id, 0} -> {0, 1 + code}   for a worker that is dead, or by the client's own
//                                                        watchdog when epd is gone
//
// A claimed id can answer only its own submission: a late worker, a ghost of a replaced one, or a poison in between never
// completes the next one. tests/unit/proto/slot_word_test.cc walks every interleaving of the four.
//
// Ordering: arming releases the request, claiming acquires it; answering releases the reply, `Done` acquires it.
// Waking the worker is Dekker's handshake: the client arms, fences, reads `asleep`; the worker writes `asleep`,
// fences, scans once more. The same the other way round with `sleeping`.
#pragma once

#include <atomic>
#include <cstdint>

namespace epd::shm {

inline constexpr uint64_t kArmed = 1;
inline constexpr uint32_t kFirstClaimId = 2;

constexpr uint32_t Ready(uint64_t word) { return static_cast<uint32_t>(word); }
constexpr uint32_t Done(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
constexpr uint64_t Claimed(uint32_t id) { return id; }
constexpr uint64_t Answered(uint32_t code) { return (uint64_t{1} + code) << 32; }
// The code of an answered word.
constexpr uint32_t AnswerCode(uint64_t word) { return Done(word) - 1; }

// Starts a submission. The caller owns the slot and its last one was answered.
inline void Arm(std::atomic<uint64_t>& word) { word.store(kArmed, std::memory_order_release); }

// Takes an armed submission as `id`. False: it was not armed (or poisoned meanwhile).
inline bool Claim(std::atomic<uint64_t>& word, uint32_t id) {
  uint64_t expected = kArmed;
  return word.compare_exchange_strong(expected, Claimed(id), std::memory_order_acq_rel,
                                      std::memory_order_acquire);
}

// Answers the submission that was claimed as `id`. False: somebody else ended it.
inline bool Answer(std::atomic<uint64_t>& word, uint32_t id, uint32_t code) {
  uint64_t expected = Claimed(id);
  return word.compare_exchange_strong(expected, Answered(code), std::memory_order_acq_rel,
                                      std::memory_order_acquire);
}

// Ends an open submission whoever holds it. `seen` must be an open word just read. False: it changed meanwhile; read again.
inline bool Poison(std::atomic<uint64_t>& word, uint64_t seen, uint32_t code) {
  if (Ready(seen) == 0) return false;
  return word.compare_exchange_strong(seen, Answered(code), std::memory_order_acq_rel,
                                      std::memory_order_acquire);
}

}  // namespace epd::shm
