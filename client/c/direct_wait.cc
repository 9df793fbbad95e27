#include "client/c/direct_wait.h"

#include <cstdlib>
#include <string_view>

#include "client/c/slot_pool.h"

namespace epd::client {

DirectWait DirectWaitFor(uint32_t num_ranks) {
  constexpr std::chrono::microseconds kYield{200};
  // As long as a rank that has a core keeps it in any wait, and then no more than a moment.
  return {.spin = SpinTime(num_ranks - 1), .yield = kYield};
}

bool DirectIsOn() {
  const char* text = std::getenv("EPD_DIRECT");
  return text == nullptr || std::string_view(text) != "off";
}

}  // namespace epd::client
