#include "tests/integration/client_c/harness/read_trap.h"

#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

namespace epd::testing {
namespace {

// A signal handler has no other way to know.
int g_in = -1;
int g_out = -1;
uintptr_t g_begin = 0;
uintptr_t g_end = 0;

void SayTrapped() {
  char line[sizeof kTrapped];
  std::memcpy(line, kTrapped, sizeof line);
  line[sizeof line - 1] = '\n';
  if (write(g_out, line, sizeof line) != sizeof line) _exit(1);
}

void StopHere(int) {
  SayTrapped();
  while (true) pause();
}

void HoldHere(int) {
  SayTrapped();
  char heard = 0;
  while (heard != '\n') {
    if (read(g_in, &heard, 1) != 1) _exit(1);
  }
  if (mprotect(reinterpret_cast<void*>(g_begin), g_end - g_begin, PROT_READ | PROT_WRITE) != 0)
    _exit(1);
}

bool Trap(const std::vector<uint8_t>& buffer, const Link& link, void (*handler)(int)) {
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  g_begin = (reinterpret_cast<uintptr_t>(buffer.data()) + page - 1) / page * page;
  g_end = (reinterpret_cast<uintptr_t>(buffer.data()) + buffer.size()) / page * page;
  if (g_end <= g_begin) return false;
  g_in = link.in();
  g_out = link.out();
  struct sigaction action = {};
  action.sa_handler = handler;
  return sigaction(SIGSEGV, &action, nullptr) == 0 &&
         mprotect(reinterpret_cast<void*>(g_begin), g_end - g_begin, PROT_NONE) == 0;
}

}  // namespace

bool TrapReads(const std::vector<uint8_t>& buffer, const Link& link) {
  return Trap(buffer, link, StopHere);
}

bool HoldAtFirstTouch(const std::vector<uint8_t>& buffer, const Link& link) {
  return Trap(buffer, link, HoldHere);
}

}  // namespace epd::testing
