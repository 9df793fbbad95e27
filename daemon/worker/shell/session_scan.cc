#include "daemon/worker/shell/session_scan.h"

#include <utility>

namespace epd {

std::pair<const SessionId, SessionSlots*>& SessionScan::Ring::Next() {
  auto session = sessions.lower_bound(next);
  if (session == sessions.end() || session->first > last_of_round) {
    session = sessions.begin();
    last_of_round = sessions.rbegin()->first;
  }
  next = SessionId(session->first.value + 1);
  return *session;
}

void SessionScan::Add(SessionId session, uint32_t uid, SessionSlots& slots) {
  Remove(session);
  uids_[session] = uid;
  rings_[uid].sessions[session] = &slots;
}

void SessionScan::Remove(SessionId session) {
  const auto uid = uids_.find(session);
  if (uid == uids_.end()) return;
  const auto ring = rings_.find(uid->second);
  ring->second.sessions.erase(session);
  if (ring->second.sessions.empty()) rings_.erase(ring);
  uids_.erase(uid);
}

std::vector<EvictSession> SessionScan::Take(const SessionSlots::Taker& take) {
  std::vector<EvictSession> unserved;
  size_t left = 0;
  for (auto& [uid, ring] : rings_) left += ring.left = ring.NumLooks();
  int taken = 0;
  auto ring = rings_.lower_bound(next_uid_);
  while (left > 0 && taken < kTakenOfTurn) {
    if (ring == rings_.end()) ring = rings_.begin();
    if (ring->second.left > 0) {
      --ring->second.left;
      --left;
      auto& [session, slots] = ring->second.Next();
      taken += slots->TakeArmed(kTakenOfSession, take);
      if (absl::Status why = slots->TakeTrouble(); !why.ok())
        unserved.push_back({session, std::move(why)});
    }
    ++ring;
  }
  next_uid_ = ring == rings_.end() ? 0 : ring->first;
  return unserved;
}

}  // namespace epd
