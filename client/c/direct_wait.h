// How long a rank looks for its peers, and whether it does.
#pragma once

#include <chrono>
#include <cstdint>

namespace epd::client {

// How long a rank of a group of `num_ranks` looks for its peers before it goes to the worker. It offers its core to others
// all the while, which costs nothing where nobody wants it: a rank that kept it kept its peer from running, with a core for
// each of them too (two ranks on two cores took three times as long). EPD_SPIN_US makes it longer.
std::chrono::nanoseconds DirectWaitFor(uint32_t num_ranks);

// Whether this process may make calls for itself: unless EPD_DIRECT is "off".
bool DirectIsOn();

}  // namespace epd::client
