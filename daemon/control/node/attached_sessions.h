// The clients that are attached to a node.
#pragma once

#include <map>

#include "daemon/control/membership_state.h"
#include "daemon/control/node/outbox.h"
#include "daemon/control/node_events.h"

namespace epd {

struct AttachedSession {
  SessionAttached client;
  SessionState state = SessionState::kAttached;
};

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

 private:
  Outbox& outbox_;
  std::map<SessionId, AttachedSession> sessions_;
};

}  // namespace epd
