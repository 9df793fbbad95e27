// The same cycle of a slot's word (slot_word.h) for a client whose calls live in a GPU's stream: what the
// stream's memory operations write and wait for.
//
// Only constants, so that a captured graph replays the cycle without host code:
//
//   arm      done := 0, then ready := 1     32-bit stores in this order, each fenced against what came before
//   wait     done >= 1                      signed and cyclic, as the hardware compares: codes stay far below 2^31
//
// Between the two stores the word is {0, 0}, which nobody claims, answers or poisons. Only CPUs change a word whose
// ready is not 0, and only by compare-and-swap: a stream that finished late could otherwise complete the next submission. So
// each step of a call site has a slot of its own, and the slots segment is registered with the driver by the client.
#pragma once

#include <cstdint>

namespace epd::shm {

struct StreamWordOperation {
  bool is_wait;     // Until the word is at least `value`; else it is written.
  uint32_t offset;  // From the start of the slot, in bytes.
  uint32_t value;
};

inline constexpr uint32_t kReadyOffset = 0;
inline constexpr uint32_t kDoneOffset = 4;

inline constexpr StreamWordOperation kArmOnStream[] = {
    {.is_wait = false, .offset = kDoneOffset, .value = 0},
    {.is_wait = false, .offset = kReadyOffset, .value = 1},
};
inline constexpr StreamWordOperation kWaitOnStream[] = {
    {.is_wait = true, .offset = kDoneOffset, .value = 1},
};

}  // namespace epd::shm
