// How long a rank looks for its peers, and whether it does.
#pragma once

#include <chrono>
#include <cstdint>

namespace epd::client {

// How long a rank looks for its peers before it goes to the worker.
struct DirectWait {
  std::chrono::nanoseconds spin{};   // Keeps its core,
  std::chrono::nanoseconds yield{};  // ... then offers it to others.
};
// `num_ranks` of the group: with a core for each of them it spins, else it yields. EPD_SPIN_US says how long.
DirectWait DirectWaitFor(uint32_t num_ranks);

// Whether this process may make calls for itself: unless EPD_DIRECT is "off".
bool DirectIsOn();

}  // namespace epd::client
