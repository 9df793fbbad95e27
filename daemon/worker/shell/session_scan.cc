#include "daemon/worker/shell/session_scan.h"

#include <optional>
#include <utility>

namespace epd {

void SessionScan::Add(SessionId session, uint32_t uid, SessionSlots& slots) {
  Remove(session);
  turns_.Add(session, uid);
  slots_[session] = &slots;
}

void SessionScan::Remove(SessionId session) {
  turns_.Remove(session);
  slots_.erase(session);
}

std::vector<EvictSession> SessionScan::Take(const Taker& take) {
  std::vector<EvictSession> unserved;
  int taken = 0;
  size_t parts = 0;
  const SessionSlots::Taker count = [&](const Submission& submission,
                                        const shm::SlotRequest& request) {
    parts += take(submission, request);
  };
  turns_.BeginTurn();
  while (taken < kTakenOfTurn && parts < kPartsOfTurn) {
    const std::optional<SessionId> session = turns_.Next();
    if (!session.has_value()) break;
    SessionSlots& slots = *slots_.at(*session);
    taken += slots.TakeArmed(kTakenOfSession, count);
    if (absl::Status why = slots.TakeTrouble(); !why.ok())
      unserved.push_back({*session, std::move(why)});
  }
  return unserved;
}

}  // namespace epd
