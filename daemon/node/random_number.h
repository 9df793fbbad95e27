// Numbers that nobody else has: incarnations and ids.
#pragma once

#include <cstdint>
#include <random>

namespace epd {

// Never 0.
inline uint64_t RandomNumber() {
  std::random_device device;
  return (uint64_t{device()} << 32 | device()) | 1;
}

}  // namespace epd
