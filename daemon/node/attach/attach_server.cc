#include "daemon/node/attach/attach_server.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/codec/codec.h"
#include "daemon/observe/log.h"
#include "daemon/observe/user_log.h"
#include "proto/epd/v1/features.h"
#include "proto/epd/v1/limits.h"
#include "proto/epd/v1/text.h"
#include "proto/failpoint/failpoint.h"

namespace epd {
namespace {

// For a thread that was told of its session's end to read the text beside the answer.
constexpr absl::Duration kSlotsStay = absl::Milliseconds(500);
// As packet.h's Receive says it: how sessions end every day, and so a word in the log.
constexpr absl::string_view kPeerClosed = "the peer closed the socket";

}  // namespace

absl::Status NegotiateVersion(const v1::Attach& attach, uint32_t* version) {
  *version = std::min(attach.max_version(), limits::kProtocolVersion);
  if (attach.min_version() <= attach.max_version() &&
      *version >= std::max(attach.min_version(), limits::kMinProtocolVersion)) {
    return absl::OkStatus();
  }
  const bool client_is_newer = attach.min_version() > limits::kProtocolVersion;
  return absl::UnimplementedError(
      absl::StrCat("the client speaks protocol versions ", attach.min_version(), "..",
                   attach.max_version(), ", epd speaks ", limits::kMinProtocolVersion, "..",
                   limits::kProtocolVersion, "; upgrade ", client_is_newer ? "epd" : "the client"));
}

AttachServer::AttachServer(Options options, EventLoop& loop, AttachObserver& observer)
    : options_(std::move(options)),
      loop_(loop),
      observer_(observer),
      listener_(options_.listener, loop,
                [this](AttachListener::Arrival arrival) { Attach(std::move(arrival)); }),
      ended_(options_.page_program, loop) {}

AttachServer::~AttachServer() {
  for (const auto& [id, session] : sessions_) Unwatch(*session);
}

const AttachSession* AttachServer::Find(SessionId session) const {
  const auto it = sessions_.find(session);
  return it == sessions_.end() ? nullptr : it->second.get();
}

UidUse AttachServer::UseOf(uid_t uid) const {
  UidUse use;
  for (const auto& [id, session] : sessions_) {
    if (session->peer.uid != uid) continue;
    for (UidShare* sum : {&use.all, &use.of_pid[session->peer.pid]}) {
      ++sum->sessions;
      sum->slots += session->num_slots();
    }
  }
  ended_.AddUse(uid, use);
  return use;
}

uint32_t AttachServer::FreeRecordIndex() const {
  std::set<uint32_t> used;
  for (const auto& [id, session] : sessions_) used.insert(session->record_index);
  uint32_t index = 0;
  while (used.count(index) != 0) ++index;
  return index;
}

absl::Status AttachServer::Prepare(const v1::Attach& attach, AttachSession& session) {
  if (absl::Status bad = NegotiateVersion(attach, &session.version); !bad.ok()) return bad;
  if (absl::Status bad = refused_.Check(session.peer.uid, MonotonicNow()); !bad.ok()) return bad;
  if (sessions_.size() >= options_.max_sessions()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("epd serves ", sessions_.size(),
                     " sessions, its limit (max_sessions); end some or raise it"));
  }
  session.features = attach.features();
  const shm::SlotsLayout layout = LayoutFor(session, kCpuWorker);
  absl::Status room =
      CheckShare(session.peer.uid, UseOf(session.peer.uid),
                 {.sessions = 1, .slots = layout.num_slots}, options_.max_per_uid());
  if (!room.ok()) return room;
  session.id = SessionId(next_session_++);
  session.record_index = FreeRecordIndex();
  session.client_name = text::Clean(attach.client_name(), limits::kNameBytes);
  session.client_version = text::Clean(attach.client_version(), limits::kNameBytes);
  session.traceparent = text::Clean(attach.traceparent(), limits::kNameBytes);
  session.started = std::max<int64_t>(attach.started(), 0);
  session.since = MonotonicNow();
  absl::StatusOr<WorkerSlots> slots = MakeWorkerSlots(session.id, options_.incarnation, layout);
  if (!slots.ok()) return slots.status();
  session.slots.emplace(kCpuWorker, *std::move(slots));
  return absl::OkStatus();
}

shm::SlotsLayout AttachServer::LayoutFor(const AttachSession& session,
                                         const WorkerName& worker) const {
  return shm::SlotsLayout::For(session.features, options_.num_slots(worker));
}

absl::Status AttachServer::Watch(AttachSession& session) {
  const SessionId id = session.id;
  session.events = EPOLLIN;
  absl::Status watched = loop_.Add(session.channel->fd(), EPOLLIN,
                                   [this, id](uint32_t events) { OnSession(id, events); });
  if (!watched.ok() || !session.peer.pidfd.valid()) return watched;
  watched =
      loop_.Add(session.peer.pidfd.get(), EPOLLIN, [this, id](uint32_t) { OnProcessEnd(id); });
  if (!watched.ok()) loop_.Remove(session.channel->fd());
  return watched;
}

void AttachServer::Unwatch(const AttachSession& session) {
  loop_.Remove(session.channel->fd());
  if (session.peer.pidfd.valid()) loop_.Remove(session.peer.pidfd.get());
}

void AttachServer::Attach(AttachListener::Arrival arrival) {
  auto session = std::make_unique<AttachSession>();
  session->peer = std::move(arrival.peer);
  session->channel = std::move(arrival.channel);
  absl::Status refused = Prepare(arrival.attach, *session);
  if (refused.ok()) refused = Watch(*session);
  if (!refused.ok()) return RefuseClient(*session->channel, session->peer, refused);

  const SessionId id = session->id;
  v1::ServerMessage message;
  v1::Attached& attached = *message.mutable_attached();
  attached.set_version(session->version);
  attached.set_features(features::kTakesCountsOfOwnExperts);
  attached.set_session_id(id.value);
  attached.set_incarnation(options_.incarnation);
  attached.set_node(options_.node);
  attached.set_daemon_version(options_.version);
  attached.set_daemon_pid(static_cast<uint32_t>(getpid()));
  *attached.mutable_form() = ToProto(options_.form);
  const AttachSession& kept = *(sessions_[id] = std::move(session));
  Log(LogLevel::kDebug, "session attached",
      {{"session", id.value},
       {"pid", kept.peer.pid},
       {"uid", kept.peer.uid},
       {"client", kept.client_name}});
  // The worker learns of the session before the client can arm a slot.
  observer_.OnAttached(kept);
  if (EPD_FAILPOINT_FAILS("epd.attach.version_gap"))
    attached.set_version(limits::kProtocolVersion + 1);
  const WorkerSlots& first = kept.slots.at(kCpuWorker);
  Send(id, message, {first.segment.fd(), first.worker_event});
}

void AttachServer::OnSession(SessionId id, uint32_t events) {
  const auto it = sessions_.find(id);
  if (it == sessions_.end()) return;
  AttachSession& session = *it->second;
  if ((events & EPOLLOUT) != 0) {
    if (const absl::Status sent = session.channel->Flush(); !sent.ok()) {
      return Detach(id, sent, ProcessAlive(session.peer));
    }
  }
  // Who waits for a turn already is not asked again in each, however many they are.
  if ((events & ~EPOLLOUT) != 0) {
    session.rests = turns_.Has(id);
    turns_.Add(id, session.peer.uid);
  }
  UpdateEvents(session);
}

// What it sent before counts: it may have left its groups.
void AttachServer::OnProcessEnd(SessionId id) {
  AttachSession& session = *sessions_.at(id);
  session.process_ended = true;
  loop_.Remove(session.peer.pidfd.get());
  turns_.Add(id, session.peer.uid);
}

void AttachServer::UpdateEvents(AttachSession& session) {
  uint32_t events = 0;
  if (!session.rests) events |= EPOLLIN;
  if (session.channel->wants_write()) events |= EPOLLOUT;
  if (std::exchange(session.events, events) != events)
    loop_.SetEvents(session.channel->fd(), events);
}

void AttachServer::HandleMessages(const std::function<bool()>& go_on) {
  turns_.BeginTurn();
  while (!turns_.empty()) {
    const std::optional<SessionId> id = turns_.Next();
    if (!id.has_value()) {
      turns_.BeginTurn();
      continue;
    }
    HandleMessage(*id);
    if (!go_on()) return;
  }
}

void AttachServer::HandleMessage(SessionId id) {
  AttachSession& session = *sessions_.at(id);
  bool would_block = false;
  absl::StatusOr<Packet> packet = session.channel->Receive(&would_block);
  if (!would_block) return HandlePacket(id, std::move(packet));
  if (session.process_ended) {
    return Detach(id, absl::UnavailableError("the client's process has ended"),
                  /*process_alive=*/false);
  }
  turns_.Remove(id);
  session.rests = false;
  UpdateEvents(session);
}

void AttachServer::HandlePacket(SessionId id, absl::StatusOr<Packet> packet) {
  const AttachSession& session = *sessions_.at(id);
  if (!packet.ok() && absl::IsUnavailable(packet.status()))
    return Detach(id, packet.status(), ProcessAlive(session.peer));
  v1::ClientMessage message;
  absl::Status bad = packet.status();
  if (bad.ok() && packet->lost_fds) {
    bad = absl::InvalidArgumentError("got more descriptors than there is room for, expected none");
  }
  if (bad.ok() && !packet->fds.empty()) {
    bad = absl::InvalidArgumentError(
        absl::StrCat("got ", packet->fds.size(), " descriptors, expected none"));
  }
  if (bad.ok() && (!message.ParseFromString(packet->bytes) ||
                   message.body_case() == v1::ClientMessage::BODY_NOT_SET)) {
    bad = absl::InvalidArgumentError(absl::StrCat(
        "got ", packet->bytes.size(), " bytes that are no ClientMessage of this version"));
  }
  if (bad.ok() && message.has_attach())
    bad = absl::InvalidArgumentError("got Attach on an attached session");
  if (!bad.ok()) return End(id, bad);
  EPD_FAILPOINT("epd.session.message");
  observer_.OnClientMessage(session, message);
}

void AttachServer::Send(SessionId id, const v1::ServerMessage& message, PacketChannel::Fds fds) {
  const auto it = sessions_.find(id);
  if (it == sessions_.end()) return;
  PacketChannel& channel = *it->second->channel;
  if (message.has_joined()) it->second->has_arenas = true;
  const absl::Status sent = channel.Send(message.SerializeAsString(), std::move(fds));
  if (!sent.ok()) {
    // This ends it later, since the caller may be looking at the session.
    loop_.Post([this, id, sent] { End(id, sent); });
    return;
  }
  UpdateEvents(*it->second);
}

absl::Status AttachServer::OpenSlots(SessionId id, const WorkerName& worker) {
  const auto it = sessions_.find(id);
  if (it == sessions_.end()) return absl::UnavailableError("the session has ended");
  std::map<WorkerName, WorkerSlots>& slots = it->second->slots;
  if (slots.count(worker) > 0) return absl::OkStatus();
  const shm::SlotsLayout layout = LayoutFor(*it->second, worker);
  const uid_t uid = it->second->peer.uid;
  const absl::Status room =
      CheckShare(uid, UseOf(uid), {.slots = layout.num_slots}, options_.max_per_uid());
  if (!room.ok()) return room;
  absl::StatusOr<WorkerSlots> made = MakeWorkerSlots(id, options_.incarnation, layout);
  if (!made.ok()) return made.status();
  slots.emplace(worker, *std::move(made));
  return absl::OkStatus();
}

void AttachServer::End(SessionId id, const absl::Status& status) {
  const auto it = sessions_.find(id);
  if (it == sessions_.end()) return;
  const bool alive = ProcessAlive(it->second->peer);
  SayGoodbye(*it->second->channel, status);
  Detach(id, status, alive);
}

void AttachServer::Refuse(uid_t uid, const std::string& why) {
  const absl::Duration refusal = options_.refusal();
  if (uid == 0 || uid == geteuid() || refusal <= absl::ZeroDuration()) return;
  const absl::Time now = MonotonicNow();
  refused_.Refuse(uid, now + refusal, why);
  std::vector<SessionId> his;
  for (const auto& [id, session] : sessions_) {
    if (session->peer.uid == uid) his.push_back(id);
  }
  for (const SessionId id : his) End(id, refused_.Check(uid, now));
}

void AttachServer::Detach(SessionId id, const absl::Status& reason, bool process_alive) {
  const auto it = sessions_.find(id);
  EPD_FAILPOINT("epd.session.detach");
  const std::unique_ptr<AttachSession> session = std::move(it->second);
  sessions_.erase(it);
  turns_.Remove(id);
  Unwatch(*session);
  LogOfUser(session->peer.uid, LogLevel::kInfo, "session ended",
            {{"session", id.value},
             {"pid", session->peer.pid},
             {"client", session->client_name},
             {"why", reason.message() == kPeerClosed ? "closed" : reason.message()}});
  observer_.OnDetached(*session, reason, process_alive);
  const absl::Time now = MonotonicNow();
  ended_.Add(session->peer, std::move(session->slots),
             now + (process_alive ? kSlotsStay : absl::ZeroDuration()));
  if (!process_alive) ended_.Tick(now);
}

void AttachServer::Tick(absl::Time now) {
  listener_.Tick(now);
  ended_.Tick(now);
}

absl::Time AttachServer::NextDeadline() const {
  return std::min(listener_.NextDeadline(), ended_.NextDeadline());
}

}  // namespace epd
