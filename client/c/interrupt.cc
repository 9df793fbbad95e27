#include "client/c/interrupt.h"

#include <atomic>
#include <csignal>

namespace epd::client {
namespace {

// Of the process, as signals are.
std::atomic<uint64_t> g_interrupts{0};
static_assert(std::atomic<uint64_t>::is_always_lock_free, "a signal handler counts");
struct sigaction g_before = {};

void OnInterrupt(int signal, siginfo_t* facts, void* context) {
  g_interrupts.fetch_add(1, std::memory_order_relaxed);
  if ((g_before.sa_flags & SA_SIGINFO) != 0) return g_before.sa_sigaction(signal, facts, context);
  g_before.sa_handler(signal);
}

}  // namespace

void WatchInterrupts() {
  struct sigaction now = {};
  if (sigaction(SIGINT, nullptr, &now) != 0) return;
  const bool takes_facts = (now.sa_flags & SA_SIGINFO) != 0;
  if (takes_facts && now.sa_sigaction == &OnInterrupt) return;
  if (!takes_facts && (now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN)) return;
  g_before = now;
  now.sa_sigaction = &OnInterrupt;
  now.sa_flags |= SA_SIGINFO;
  sigaction(SIGINT, &now, nullptr);
}

uint64_t Interrupts::Count() { return g_interrupts.load(std::memory_order_relaxed); }

}  // namespace epd::client
