// The attached clients: their sessions, and the messages to and from them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/control/uid_limits.h"
#include "daemon/core/ids.h"
#include "daemon/core/session_turns.h"
#include "daemon/node/attach/attach_listener.h"
#include "daemon/node/attach/attach_session.h"
#include "daemon/node/attach/ended_slots.h"
#include "daemon/node/attach/refused_users.h"
#include "daemon/node/handover/handover_fields.h"
#include "daemon/node/loop/event_loop.h"
#include "proto/epd/v1/attach.pb.h"
#include "proto/epd/v1/handover.pb.h"

namespace epd {

// What the attach socket tells its owner. Called on the loop's thread; may call Send and End.
class AttachObserver {
 public:
  virtual ~AttachObserver() = default;
  // A client attached; it has been sent Attached.
  virtual void OnAttached(const AttachSession& session) = 0;
  // Join, Leave or Drained.
  virtual void OnClientMessage(const AttachSession& session, const v1::ClientMessage& message) = 0;
  // Its socket closed or its process ended (`process_alive` says which). Nothing can be sent any
  // more; `session` is destroyed after this returns.
  virtual void OnDetached(const AttachSession& session, const absl::Status& reason,
                          bool process_alive) = 0;
};

class AttachServer {
 public:
  struct Options {
    std::string node;
    std::string version;  // Of epd, for Attached.
    uint64_t incarnation = 0;
    absl::Duration form;                      // Of a group that does not say it, for Attached.
    std::function<uint64_t()> max_sessions;   // At this moment; at most shm::kMaxSessions.
    std::function<UidShare()> max_per_uid;    // Its sessions and their op slots.
    std::function<absl::Duration()> refusal;  // Of Refuse; zero: nobody is refused.
    // What a session is given for the worker if its client takes so many.
    std::function<uint32_t(const WorkerName&)> num_slots;
    AttachListener::Options listener;
    std::string page_program;  // PageProcesses'.
  };

  // References must outlive this.
  AttachServer(Options options, EventLoop& loop, AttachObserver& observer);
  ~AttachServer();

  // As AttachListener::Start.
  absl::Status Start(UniqueFd listener) { return listener_.Start(std::move(listener)); }

  // Queues a message for a session; drops it when the session is gone. A client that does not read
  // is ended.
  void Send(SessionId session, const v1::ServerMessage& message, PacketChannel::Fds fds = {});

  // Says Goodbye with `status` and closes the socket; OnDetached follows before this returns.
  void End(SessionId session, const absl::Status& status);

  // Ends the sessions of a user who has done what `why` says, and refuses him for a while. epd's own user and root, who can do
  // more than that, stay.
  void Refuse(uid_t uid, const std::string& why);

  // Makes the session's slots for one more worker; there is nothing to do when it has them.
  //   RESOURCE_EXHAUSTED  memory or descriptors
  absl::Status OpenSlots(SessionId session, const WorkerName& worker);

  // Hands messages on: of each user in turn, and of a user of each session, one. Until none is left, or `go_on`, which is
  // asked after each, says no; the next call goes on from there.
  void HandleMessages(const std::function<bool()>& go_on);
  // Whether a message may wait, so that the loop is not to.
  bool has_messages() const { return !turns_.empty(); }

  // Ends connections that did not attach in time, and lets go of what ended sessions had.
  void Tick(absl::Time now);
  absl::Time NextDeadline() const;

  // Refuses everybody who has connected or attaches from now on, with `status`, and closes the
  // listener.
  void StopAccepting(const absl::Status& status) { listener_.Stop(status); }

  // Ends those that do not read what they were sent: what waits for them is not handed over.
  void EndDeaf();
  // Processes that this one has started do not go on there.
  void EndProcesses() { ended_.EndProcesses(); }
  // Sessions and connections go on in another program of this process. Restore: before the loop runs.
  void Save(v1::HandoverClients& out, OutgoingFds& fds) const;
  absl::Status Restore(const v1::HandoverClients& in, IncomingFds& fds);

  const AttachSession* Find(SessionId session) const;
  // How many of them the uid has.
  UidUse UseOf(uid_t uid) const;
  // All attached sessions, by id.
  const std::map<SessionId, std::unique_ptr<AttachSession>>& sessions() const { return sessions_; }

 private:
  void Attach(AttachListener::Arrival arrival);
  // Version, room and slots of a session to be.
  absl::Status Prepare(const v1::Attach& attach, AttachSession& session);
  shm::SlotsLayout LayoutFor(const AttachSession& session, const WorkerName& worker) const;
  absl::Status Watch(AttachSession& session);
  void Unwatch(const AttachSession& session);
  void OnSession(SessionId id, uint32_t events);
  void OnProcessEnd(SessionId id);
  void UpdateEvents(AttachSession& session);
  void HandleMessage(SessionId id);
  void HandlePacket(SessionId id, absl::StatusOr<Packet> packet);
  void Detach(SessionId id, const absl::Status& reason, bool process_alive);
  uint32_t FreeRecordIndex() const;

  const Options options_;
  EventLoop& loop_;
  AttachObserver& observer_;
  AttachListener listener_;
  uint64_t next_session_ = 1;
  std::map<SessionId, std::unique_ptr<AttachSession>> sessions_;
  SessionTurns turns_;  // Of sessions that may have sent something, or whose process has ended.
  EndedSlots ended_;
  RefusedUsers refused_;
};

// OK when client and epd have a version in common; `*version` is the highest.
//   UNIMPLEMENTED  none: names both ranges and which side to upgrade
absl::Status NegotiateVersion(const v1::Attach& attach, uint32_t* version);

}  // namespace epd
