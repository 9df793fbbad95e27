#include "client/c/interrupt.h"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <mutex>
#include <shared_mutex>

namespace epd::client {
namespace {

// Of the process, as signals are.
std::atomic<uint64_t> g_interrupts{0};
std::atomic<std::atomic<uint64_t>*> g_count{&g_interrupts};
static_assert(std::atomic<uint64_t>::is_always_lock_free, "a signal handler counts");
struct sigaction g_before = {};
struct sigaction g_first = {};   // The first that was wrapped.
std::atomic<pid_t> g_inside{0};  // The thread that is in `g_before`.
// Whoever asks the interpreter holds it shared.
std::shared_mutex g_interpreter_mutex;
Interpreter g_interpreter;

uint64_t Count() { return g_count.load()->load(std::memory_order_relaxed); }

void Call(const struct sigaction& handler, int signal, siginfo_t* facts, void* context) {
  if ((handler.sa_flags & SA_SIGINFO) != 0) return handler.sa_sigaction(signal, facts, context);
  handler.sa_handler(signal);
}

void OnInterrupt(int signal, siginfo_t* facts, void* context) {
  const pid_t self = gettid();
  // One that was set later and calls whoever was there before, as faulthandler's does: that is this one.
  if (g_inside.load() == self) return Call(g_first, signal, facts, context);
  g_count.load()->fetch_add(1, std::memory_order_relaxed);
  const pid_t outside = g_inside.exchange(self);
  Call(g_before, signal, facts, context);
  g_inside.store(outside);
}

const void* HandlerOf(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 ? reinterpret_cast<const void*>(action.sa_sigaction)
                                             : reinterpret_cast<const void*>(action.sa_handler);
}

const void* ObjectOf(const void* address) {
  Dl_info facts = {};
  return dladdr(address, &facts) != 0 ? facts.dli_fbase : nullptr;
}

bool IsHandled(const struct sigaction& action) {
  const bool takes_facts = (action.sa_flags & SA_SIGINFO) != 0;
  return takes_facts || (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
}

void Wrap(struct sigaction action) {
  if (!IsHandled(g_first)) g_first = action;
  g_before = action;
  action.sa_sigaction = &OnInterrupt;
  action.sa_flags |= SA_SIGINFO;
  sigaction(SIGINT, &action, nullptr);
}

bool IsOurs(const struct sigaction& action) {
  return HandlerOf(action) == reinterpret_cast<const void*>(&OnInterrupt);
}

// Wraps the interpreter's handler, and no other: one that somebody chains to this one would be called by it and call it.
void WatchAgain() {
  struct sigaction now = {};
  if (sigaction(SIGINT, nullptr, &now) != 0 || IsOurs(now) || !IsHandled(now)) return;
  const std::unique_lock lock(g_interpreter_mutex, std::try_to_lock);
  if (!lock.owns_lock() || g_interpreter.owner == nullptr) return;
  const void* object = ObjectOf(HandlerOf(now));
  if (object != nullptr && object == ObjectOf(g_interpreter.owner)) Wrap(now);
}

bool EndsWait(uint64_t interrupt) {
  const std::shared_lock lock(g_interpreter_mutex);
  return g_interpreter.ends_wait == nullptr || g_interpreter.ends_wait(interrupt);
}

}  // namespace

void SetInterpreter(const Interpreter& interpreter) {
  {
    const std::unique_lock lock(g_interpreter_mutex);
    g_interpreter = interpreter;
    if (interpreter.count != nullptr) g_count = interpreter.count;
  }
  WatchAgain();
}

Interrupts::Interrupts() : seen_(Count()) { WatchAgain(); }

bool Interrupts::any() const {
  if (ends_) return true;
  WatchAgain();
  const uint64_t now = Count();
  if (now == seen_) return false;
  seen_ = now;
  ends_ = ++asked_ > 1 || EndsWait(now);
  return ends_;
}

}  // namespace epd::client
