// Time in which a process did not run although it would have: it was stopped (SIGSTOP), its cgroup was frozen, its container or its
// machine was suspended, or the machine was too busy. CLOCK_MONOTONIC goes on meanwhile. Whoever counts such a time against
// others calls ranks absent that were stopped with it. So epd, its workers and their clients keep a time of their own, which
// stands still with them, and all their deadlines are of that time.
//
// One rule: a wait looks at the clock at least every kTick while some deadline is ahead. If it comes to look later than it meant
// to by more than kSlack, all of that delay is lost.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace epd::standstill {

inline constexpr std::chrono::milliseconds kTick{200};
// What a machine that has much to do delays a thread by.
inline constexpr std::chrono::milliseconds kSlack{300};

// In nanoseconds: what is lost of the time until `now`, where a look was due at `due`. What is before `known_until` was counted by
// an earlier look, or by another thread's.
constexpr int64_t Lost(int64_t due, int64_t now, int64_t known_until) {
  if (now - due <= std::chrono::nanoseconds(kSlack).count()) return 0;
  return std::max<int64_t>(now - std::max(due, known_until), 0);
}

}  // namespace epd::standstill
