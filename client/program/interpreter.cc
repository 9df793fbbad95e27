#include "client/program/interpreter.h"

#include <atomic>
#include <new>

#include "client/c/interrupt.h"
#include "client/c/struct_size.h"

namespace epd::program {
namespace {

// Written while nobody asks (client::SetInterpreter), and for its pending calls never taken away.
epd_program_interpreter g_python = {};
// The last interrupt for which something is raised: many threads may ask about one.
std::atomic<uint64_t> g_raised{0};

// An exception of the main thread on its way from a wait, where nobody could take it, to the next line of the program.
struct Exception {
  void* type;
  void* value;
  void* traceback;
};

int Raise(void* argument) {
  const auto* exception = static_cast<Exception*>(argument);
  g_python.restore(exception->type, exception->value, exception->traceback);
  delete exception;
  return -1;
}

int RaiseKeyboardInterrupt(void* /*argument*/) {
  g_python.set_none(g_python.keyboard_interrupt);
  return -1;
}

// The interpreter's lock is held.
bool Asks(uint64_t interrupt) {
  if (g_python.check_signals() != 0) {
    g_raised.store(interrupt);
    Exception raised = {};
    g_python.fetch(&raised.type, &raised.value, &raised.traceback);
    auto* exception = new (std::nothrow) Exception(raised);
    g_python.add_pending_call(exception != nullptr ? &Raise : &RaiseKeyboardInterrupt, exception);
    return true;
  }
  const int ends = g_python.ends_wait();
  if (ends == EPD_INTERRUPT_RAISES && g_raised.exchange(interrupt) != interrupt)
    g_python.add_pending_call(&RaiseKeyboardInterrupt, nullptr);
  return ends != 0;
}

bool EndsWait(uint64_t interrupt) {
  const int state = g_python.ensure();
  const bool ends = Asks(interrupt);
  g_python.release(state);
  return ends;
}

}  // namespace

void SetInterpreter(const epd_program_interpreter* interpreter) {
  client::SetInterpreter({});
  if (interpreter == nullptr) return;
  if (!client::ReadStruct(interpreter, "interpreter", &g_python).ok() ||
      g_python.num_interrupts == nullptr)
    return;
  static_assert(sizeof(std::atomic<uint64_t>) == sizeof(uint64_t));
  client::SetInterpreter({reinterpret_cast<const void*>(g_python.check_signals),
                          reinterpret_cast<std::atomic<uint64_t>*>(g_python.num_interrupts),
                          &EndsWait});
}

}  // namespace epd::program
