// CHECK for our own invariants, never for input: ends the process with the place and the condition.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace epd {

[[noreturn]] inline void CheckFailed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "%s:%d: EPD_CHECK failed: %s\n", file, line, condition);
  std::abort();
}

}  // namespace epd

#define EPD_CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::epd::CheckFailed(__FILE__, __LINE__, #condition))
