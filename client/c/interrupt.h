// Ctrl-C while a thread waits for other ranks: a wait in C would otherwise keep it from the program for as long as the
// others take.
#pragma once

#include <chrono>
#include <cstdint>

namespace epd::client {

// How often a wait looks.
inline constexpr std::chrono::milliseconds kInterruptLook{200};

// From now on waits see SIGINT, and whatever handled it before does so still. Does nothing a second time, or where the
// signal is ignored or would end the process. A handler that is set later takes the signal away again.
void WatchInterrupts();

// Made where a wait begins.
class Interrupts {
 public:
  Interrupts() : before_(Count()) {}
  // Whether there was one since.
  bool any() const { return Count() != before_; }

 private:
  static uint64_t Count();

  const uint64_t before_;
};

}  // namespace epd::client
