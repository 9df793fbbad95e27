// Places where a test makes something go wrong, in a build of their own (bazel build --config=failpoints).
//
// In every other build a macro is what it wraps, or nothing. Each name stands at one place; README.md lists them, what each
// can do, and how a test says so. Any thread.
#pragma once

#ifdef EPD_FAILPOINTS

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace epd::failpoint {

void Reach(const char* point);
bool Fails(const char* point);
int Times(const char* point);
bool Swaps(const char* point);
void Flip(const char* point, void* data, size_t bytes);
int64_t Jumped(const char* point);

}  // namespace epd::failpoint

// A statement: kill, stop, delay; so can all others.
#define EPD_FAILPOINT(name) ::epd::failpoint::Reach(name)
// A bool, true: error. What then happens stands at the place.
#define EPD_FAILPOINT_FAILS(name) ::epd::failpoint::Fails(name)
// In place of a system call that returns an int: error makes it -1 with `number` in errno.
#define EPD_FAILPOINT_CALL(name, number, call) \
  (::epd::failpoint::Fails(name) ? (errno = (number), -1) : static_cast<int>(call))
// A statement, of the one that sends: drop leaves it out, duplicate does it twice.
#define EPD_FAILPOINT_SEND(name, ...)                                                 \
  do {                                                                                \
    for (int epd_times = ::epd::failpoint::Times(name); epd_times > 0; --epd_times) { \
      __VA_ARGS__;                                                                    \
    }                                                                                 \
  } while (false)
// A statement; reorder swaps the last two of a container.
#define EPD_FAILPOINT_REORDER(name, queue)                                 \
  do {                                                                     \
    if (::epd::failpoint::Swaps(name) && (queue).size() > 1)               \
      std::swap((queue)[(queue).size() - 1], (queue)[(queue).size() - 2]); \
  } while (false)
// A statement; flip turns over the middle bit of `bytes` at `data`.
#define EPD_FAILPOINT_FLIP(name, data, bytes) ::epd::failpoint::Flip(name, data, bytes)
// Nanoseconds that a clock is ahead: jump adds to them, for good.
#define EPD_FAILPOINT_JUMPED(name) ::epd::failpoint::Jumped(name)

#else

#define EPD_FAILPOINT(name) static_cast<void>(0)
#define EPD_FAILPOINT_FAILS(name) false
#define EPD_FAILPOINT_CALL(name, number, call) (call)
#define EPD_FAILPOINT_SEND(name, ...) \
  do {                                \
    __VA_ARGS__;                      \
  } while (false)
#define EPD_FAILPOINT_REORDER(name, queue) static_cast<void>(0)
#define EPD_FAILPOINT_FLIP(name, data, bytes) static_cast<void>(0)
#define EPD_FAILPOINT_JUMPED(name) 0

#endif
