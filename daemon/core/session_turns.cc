#include "daemon/core/session_turns.h"

namespace epd {

SessionId SessionTurns::Ring::Next() {
  auto session = sessions.lower_bound(next);
  if (session == sessions.end() || *session > last_of_round) {
    session = sessions.begin();
    last_of_round = *sessions.rbegin();
  }
  next = SessionId(session->value + 1);
  return *session;
}

void SessionTurns::Add(SessionId session, uint32_t uid) {
  if (uids_.emplace(session, uid).second) rings_[uid].sessions.insert(session);
}

void SessionTurns::Remove(SessionId session) {
  const auto uid = uids_.find(session);
  if (uid == uids_.end()) return;
  const auto ring = rings_.find(uid->second);
  ring->second.sessions.erase(session);
  if (ring->second.sessions.empty()) {
    left_ -= ring->second.left;
    rings_.erase(ring);
  }
  uids_.erase(uid);
}

void SessionTurns::BeginTurn() {
  left_ = 0;
  for (auto& [uid, ring] : rings_) left_ += ring.left = ring.NumLooks();
}

std::optional<SessionId> SessionTurns::Next() {
  if (left_ == 0) return std::nullopt;
  auto ring = rings_.lower_bound(next_uid_);
  for (;; ++ring) {
    if (ring == rings_.end()) ring = rings_.begin();
    if (ring->second.left > 0) break;
  }
  --ring->second.left;
  --left_;
  const SessionId session = ring->second.Next();
  next_uid_ = ring->first + 1;  // After the last of all users comes the first.
  return session;
}

}  // namespace epd
