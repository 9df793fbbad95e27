// The clients that are attached to a node.
#pragma once

#include <map>

#include "daemon/control/membership_state.h"
#include "daemon/control/node/outbox.h"
#include "daemon/control/node_events.h"
#include "daemon/control/node_state.h"

namespace epd {

class AttachedSessions {
 public:
  explicit AttachedSessions(Outbox& outbox) : outbox_(outbox) {}

  void Attach(const SessionAttached& event);
  // Returns whether the session was known.
  bool Remove(SessionId id);
  // Tells the session, or all of them, to end; one that was told already hears nothing.
  void End(SessionId id, const absl::Status& why);
  void EndAll(const absl::Status& why);

  const AttachedSession* Find(SessionId id) const;  // Null: it is gone.

  const std::map<SessionId, AttachedSession>& all() const { return sessions_; }
  void Restore(std::map<SessionId, AttachedSession> sessions) { sessions_ = std::move(sessions); }

 private:
  Outbox& outbox_;
  std::map<SessionId, AttachedSession> sessions_;
};

}  // namespace epd
