#include "daemon/worker/shell/session_scan.h"

#include "absl/strings/str_cat.h"

namespace epd {

std::vector<EvictSession> SessionScan::Take(SessionTable& sessions,
                                            const SessionSlots::Taker& take) {
  std::vector<EvictSession> unserved;
  int taken = 0;
  auto session = sessions.lower_bound(next_);
  for (size_t seen = 0; seen < sessions.size() && taken < kTakenOfTurn; ++seen) {
    if (session == sessions.end()) session = sessions.begin();
    taken += session->second.TakeArmed(kTakenOfSession, take);
    if (absl::Status why = session->second.TakeTrouble(); !why.ok())
      unserved.push_back({session->first, std::move(why)});
    ++session;
  }
  next_ = session == sessions.end() ? SessionId() : session->first;
  return unserved;
}

}  // namespace epd
