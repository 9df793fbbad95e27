// Numbers that nobody else has: incarnations and ids.
#pragma once

#include <sys/random.h>

#include <cstdint>
#include <cstdlib>

namespace epd {

// Never 0. One call of the kernel; a std::random_device asks the processor what it is each time, which costs 100 us on a
// virtual one.
inline uint64_t RandomNumber() {
  uint64_t number;
  if (getrandom(&number, sizeof number, 0) != static_cast<ssize_t>(sizeof number)) std::abort();
  return number | 1;
}

}  // namespace epd
