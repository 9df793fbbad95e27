// How long a Join may take.
#pragma once

#include <algorithm>
#include <chrono>

#include "client/c/attach_messages.h"

namespace epd::client {

// The daemon ends a late Join itself and says who is missing; this is for one that does not answer at all. By the Join's own
// deadline, else the group's, else the daemon's (an earlier release does not say it: the usual one), and time for the answer.
inline std::chrono::nanoseconds JoinWait(const Join& join, const Attached& daemon) {
  constexpr std::chrono::minutes kDefaultForm{5};
  constexpr std::chrono::hours kLongest{24 * 365};  // As the daemon.
  constexpr std::chrono::seconds kAnswerGrace{10};
  std::chrono::nanoseconds wait = kDefaultForm;
  for (const Duration told : {daemon.form, join.spec.deadlines.form, join.deadline}) {
    if (told > 0) wait = std::chrono::nanoseconds(told);
  }
  return std::min<std::chrono::nanoseconds>(wait, kLongest) + kAnswerGrace;
}

}  // namespace epd::client
