#include "tests/integration/client_c/harness/read_trap.h"

#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

namespace epd::testing {
namespace {

int g_out = -1;  // A signal handler has no other way to know.

void StopHere(int) {
  char line[sizeof kTrapped];
  std::memcpy(line, kTrapped, sizeof line);
  line[sizeof line - 1] = '\n';
  if (write(g_out, line, sizeof line) != sizeof line) _exit(1);
  while (true) pause();
}

}  // namespace

bool TrapReads(const std::vector<uint8_t>& buffer, const Link& link) {
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(buffer.data()) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(buffer.data()) + buffer.size()) / page * page;
  if (end <= begin) return false;
  g_out = link.out();
  struct sigaction action = {};
  action.sa_handler = StopHere;
  return sigaction(SIGSEGV, &action, nullptr) == 0 &&
         mprotect(reinterpret_cast<void*>(begin), end - begin, PROT_NONE) == 0;
}

}  // namespace epd::testing
