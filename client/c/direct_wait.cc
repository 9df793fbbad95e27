#include "client/c/direct_wait.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "client/c/slot_pool.h"

namespace epd::client {

std::chrono::nanoseconds DirectWaitFor(uint32_t num_ranks) {
  // Whoever yields meanwhile takes little from others; asking the worker and sleeping takes more (tests/bench/README.md).
  constexpr std::chrono::nanoseconds kMoment = std::chrono::milliseconds(1);
  return std::max(kMoment, SpinTime(num_ranks - 1));
}

bool DirectIsOn() {
  const char* text = std::getenv("EPD_DIRECT");
  return text == nullptr || std::string_view(text) != "off";
}

}  // namespace epd::client
