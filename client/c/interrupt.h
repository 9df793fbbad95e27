// Ctrl-C while a thread waits for other ranks: a wait in C would otherwise keep it from the program for as long as the
// others take.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace epd::client {

// How often a wait looks.
inline constexpr std::chrono::milliseconds kInterruptLook{200};

// The program is run by an interpreter, which has one handler of its own for all that its programs install, whenever they do.
struct Interpreter {
  // Its handler is of the same shared object as this, which is how it is known.
  const void* owner = nullptr;
  // Of SIGINTs, by whichever of several copies of this library (a framework's each) has its handler in place.
  std::atomic<uint64_t>* count = nullptr;
  // Called by each thread that waits, once for each SIGINT, with its number; true: the wait is to end. May wait for the interpreter's
  // lock.
  bool (*ends_wait)(uint64_t interrupt) = nullptr;
};

// From now on waits see SIGINT, and the interpreter's handler does what it does; each wait looks whether that handler is there again
// without this one. Does nothing where the signal is ignored or would end the process. `interpreter.owner` null: it ends; returns
// once nobody asks it any more, and from then on every SIGINT ends waits.
void SetInterpreter(const Interpreter& interpreter);

// Made where a wait begins.
class Interrupts {
 public:
  Interrupts();
  // Whether one has come since that ends the wait: with an interpreter the first that it says so of, or the second of all.
  bool any() const;

 private:
  mutable uint64_t seen_;
  mutable int asked_ = 0;
  mutable bool ends_ = false;
};

}  // namespace epd::client
