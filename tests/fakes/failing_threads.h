// Threads that cannot be had: pthread_create of every program that this is linked into.
#pragma once

#include <atomic>

namespace epd::testing {

// So many more threads until none can be had (EAGAIN); negative: all can.
extern std::atomic<int> g_threads_left;

}  // namespace epd::testing
