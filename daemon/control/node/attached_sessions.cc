#include "daemon/control/node/attached_sessions.h"

#include "daemon/core/check.h"

namespace epd {

void AttachedSessions::Attach(const SessionAttached& event) { sessions_[event.session] = {event}; }

bool AttachedSessions::Remove(SessionId id) {
  const auto it = sessions_.find(id);
  if (it == sessions_.end()) return false;
  EPD_CHECK(kSessionTransitions.Next(it->second.state, SessionEvent::kGone).has_value());
  sessions_.erase(it);
  return true;
}

void AttachedSessions::End(SessionId id, const absl::Status& why) {
  AttachedSession& session = sessions_.at(id);
  const std::optional<SessionState> next =
      kSessionTransitions.Next(session.state, SessionEvent::kEnd);
  if (!next.has_value()) return;
  session.state = *next;
  outbox_.Add(EndSession{id, why});
}

void AttachedSessions::EndAll(const absl::Status& why) {
  for (const auto& [id, session] : sessions_) End(id, why);
}

const AttachedSession* AttachedSessions::Find(SessionId id) const {
  const auto it = sessions_.find(id);
  return it == sessions_.end() ? nullptr : &it->second;
}

}  // namespace epd
