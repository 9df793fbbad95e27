#include "daemon/node/attach/attach_server.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/node/attach/codec.h"
#include "daemon/observe/log.h"
#include "proto/epd/v1/limits.h"

namespace epd {
namespace {

constexpr int kMessagesPerTurn = 16;
constexpr size_t kMaxPending = 256;
constexpr absl::Duration kRest = absl::Milliseconds(100);

v1::ServerMessage Goodbye(const absl::Status& status) {
  v1::ServerMessage message;
  *message.mutable_goodbye()->mutable_status() = ToProto(status);
  return message;
}

// Closing a Unix socket with unread messages makes the peer lose what was sent to it, so they are
// read first.
void SayGoodbye(PacketChannel& channel, const absl::Status& status) {
  const absl::Status sent = channel.Send(Goodbye(status).SerializeAsString());
  if (!sent.ok()) return;  // It does not listen.
  shutdown(channel.fd(), SHUT_RDWR);
  for (int i = 0; i < kMessagesPerTurn; ++i) {
    bool would_block = false;
    if (!channel.Receive(&would_block).ok() || would_block) return;
  }
}

absl::StatusOr<SessionSlots> MakeSlots(SessionId session, uint64_t incarnation) {
  absl::StatusOr<SharedSegment> segment = CreateSlots(session.value, incarnation);
  if (!segment.ok()) return segment.status();
  SessionSlots slots;
  slots.segment = *std::move(segment);
  slots.worker_event = std::make_shared<UniqueFd>(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (slots.worker_event->valid()) return slots;
  return absl::ResourceExhaustedError(
      absl::StrCat("epd has no descriptors left for this client (eventfd: ", std::strerror(errno),
                   "); raise LimitNOFILE or end sessions"));
}

UniqueFd OpenSpare() { return UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

}  // namespace

absl::Status NegotiateVersion(const v1::Attach& attach, uint32_t* version) {
  *version = std::min(attach.max_version(), limits::kProtocolVersion);
  if (attach.min_version() <= attach.max_version() &&
      *version >= std::max(attach.min_version(), kMinProtocolVersion)) {
    return absl::OkStatus();
  }
  const bool client_is_newer = attach.min_version() > limits::kProtocolVersion;
  return absl::UnimplementedError(
      absl::StrCat("the client speaks protocol versions ", attach.min_version(), "..",
                   attach.max_version(), ", epd speaks ", kMinProtocolVersion, "..",
                   limits::kProtocolVersion, "; upgrade ", client_is_newer ? "epd" : "the client"));
}

AttachServer::AttachServer(Options options, EventLoop& loop, AttachObserver& observer)
    : options_(std::move(options)), spare_(OpenSpare()), loop_(loop), observer_(observer) {}

AttachServer::~AttachServer() {
  if (listener_.valid()) loop_.Remove(listener_.get());
  for (auto& [fd, pending] : pending_) loop_.Remove(fd);
  for (auto& [id, session] : sessions_) {
    loop_.Remove(session->channel->fd());
    if (session->peer.pidfd.valid()) loop_.Remove(session->peer.pidfd.get());
  }
}

absl::Status AttachServer::Start(UniqueFd listener) {
  listener_ = std::move(listener);
  return loop_.Add(listener_.get(), EPOLLIN, [this](uint32_t) { OnListener(); });
}

const AttachSession* AttachServer::Find(SessionId session) const {
  const auto it = sessions_.find(session);
  return it == sessions_.end() ? nullptr : it->second.get();
}

void AttachServer::OnListener() {
  for (int i = 0; i < kMessagesPerTurn; ++i) {
    if (!AcceptOne()) return;
  }
}

bool AttachServer::AcceptOne() {
  UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.valid()) {
    Admit(std::move(socket));
    return true;
  }
  if (errno == EMFILE || errno == ENFILE) RefuseWithSpareFd();
  return errno == EINTR || errno == ECONNABORTED;
}

// Without this the listener would stay readable and the loop would spin; where not even this helps,
// because the limit was lowered below what is open, the listener rests for a moment.
void AttachServer::RefuseWithSpareFd() {
  spare_.reset();
  UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  const bool socket_taken = socket.valid();
  if (socket_taken) {
    PacketChannel channel(std::move(socket));
    SayGoodbye(channel, absl::ResourceExhaustedError(
                            "epd has no descriptors left; raise LimitNOFILE or end sessions"));
  }
  Log(LogLevel::kError, "no descriptors left for a client", {{"sessions", sessions_.size()}});
  spare_ = OpenSpare();
  if (socket_taken) return;
  loop_.SetEvents(listener_.get(), 0);
  accept_again_ = MonotonicNow() + kRest;
}

void AttachServer::Admit(UniqueFd socket) {
  absl::StatusOr<PeerCredentials> peer = ReadPeer(socket.get());
  auto channel = std::make_unique<PacketChannel>(std::move(socket));
  absl::Status refused = peer.status();
  if (refused.ok()) refused = refusal_;
  if (refused.ok()) refused = CheckPeer(peer->uid, geteuid());
  if (refused.ok() && pending_.size() >= kMaxPending) {
    refused = absl::ResourceExhaustedError(
        absl::StrCat(kMaxPending, " connections wait to attach; retry when they have"));
  }
  const int fd = channel->fd();
  if (refused.ok()) refused = loop_.Add(fd, EPOLLIN, [this, fd](uint32_t) { OnPending(fd); });
  if (!refused.ok()) {
    Log(LogLevel::kWarn, "connection refused",
        {{"pid", peer.ok() ? peer->pid : 0}, {"why", refused.message()}});
    return SayGoodbye(*channel, refused);
  }
  pending_[fd] =
      Pending{*std::move(peer), std::move(channel), MonotonicNow() + options_.attach_deadline};
}

void AttachServer::RefusePending(int fd, const absl::Status& status) {
  const auto it = pending_.find(fd);
  Log(LogLevel::kWarn, "connection refused",
      {{"pid", it->second.peer.pid}, {"why", status.message()}});
  SayGoodbye(*it->second.channel, status);
  loop_.Remove(fd);
  pending_.erase(it);
}

void AttachServer::OnPending(int fd) {
  Pending& pending = pending_.at(fd);
  bool would_block = false;
  absl::StatusOr<Packet> packet = pending.channel->Receive(&would_block);
  if (would_block) return;
  if (!packet.ok()) return RefusePending(fd, packet.status());
  v1::ClientMessage message;
  if (!packet->fds.empty() || !message.ParseFromString(packet->bytes) || !message.has_attach()) {
    return RefusePending(
        fd, absl::InvalidArgumentError(absl::StrCat(
                "the first message: got ", packet->bytes.size(), " bytes and ", packet->fds.size(),
                " descriptors that are no Attach, expected a ClientMessage with `attach`")));
  }
  Attach(fd, message.attach());
}

uint32_t AttachServer::FreeRecordIndex() const {
  std::set<uint32_t> used;
  for (const auto& [id, session] : sessions_) used.insert(session->record_index);
  uint32_t index = 0;
  while (used.count(index) != 0) ++index;
  return index;
}

void AttachServer::Attach(int fd, const v1::Attach& attach) {
  auto session = std::make_unique<AttachSession>();
  absl::Status status = NegotiateVersion(attach, &session->version);
  if (status.ok() && sessions_.size() >= options_.max_sessions) {
    status = absl::ResourceExhaustedError(
        absl::StrCat("epd serves ", sessions_.size(),
                     " sessions, its limit (max_sessions); end some or raise it"));
  }
  if (!status.ok()) return RefusePending(fd, status);
  session->id = SessionId(next_session_++);
  session->record_index = FreeRecordIndex();
  session->features = attach.features();
  absl::StatusOr<SessionSlots> slots = MakeSlots(session->id, options_.incarnation);
  if (!slots.ok()) return RefusePending(fd, slots.status());
  session->slots.emplace(kCpuWorker, *std::move(slots));
  session->client_name = attach.client_name().substr(0, limits::kNameBytes);
  session->client_version = attach.client_version().substr(0, limits::kNameBytes);
  session->since = MonotonicNow();

  const SessionId id = session->id;
  Pending pending = std::move(pending_.at(fd));
  pending_.erase(fd);
  loop_.Remove(fd);
  session->peer = std::move(pending.peer);
  session->channel = std::move(pending.channel);
  status = loop_.Add(fd, EPOLLIN, [this, id](uint32_t events) { OnSession(id, events); });
  if (status.ok() && session->peer.pidfd.valid()) {
    status =
        loop_.Add(session->peer.pidfd.get(), EPOLLIN, [this, id](uint32_t) { OnProcessEnded(id); });
  }
  if (!status.ok()) {
    SayGoodbye(*session->channel, status);
    return loop_.Remove(fd);
  }
  v1::ServerMessage message;
  v1::Attached& attached = *message.mutable_attached();
  attached.set_version(session->version);
  attached.set_session_id(id.value);
  attached.set_incarnation(options_.incarnation);
  attached.set_node(options_.node);
  attached.set_daemon_version(options_.version);
  attached.set_daemon_pid(static_cast<uint32_t>(getpid()));
  const AttachSession& kept = *(sessions_[id] = std::move(session));
  Log(LogLevel::kInfo, "session attached",
      {{"session", id.value},
       {"pid", kept.peer.pid},
       {"uid", kept.peer.uid},
       {"client", kept.client_name}});
  // The worker learns of the session before the client can arm a slot.
  observer_.OnAttached(kept);
  const SessionSlots& first = kept.slots.at(kCpuWorker);
  Send(id, message, {first.segment.fd(), first.worker_event});
}

void AttachServer::OnSession(SessionId id, uint32_t events) {
  const auto it = sessions_.find(id);
  if (it == sessions_.end()) return;
  PacketChannel& channel = *it->second->channel;
  if ((events & EPOLLOUT) != 0) {
    if (const absl::Status sent = channel.Flush(); !sent.ok()) {
      return Detach(id, sent, ProcessAlive(it->second->peer));
    }
    if (!channel.wants_write()) loop_.SetEvents(channel.fd(), EPOLLIN);
  }
  for (int i = 0; i < kMessagesPerTurn; ++i) {
    bool would_block = false;
    absl::StatusOr<Packet> packet = channel.Receive(&would_block);
    if (would_block || !HandlePacket(id, std::move(packet))) return;
  }
}

bool AttachServer::HandlePacket(SessionId id, absl::StatusOr<Packet> packet) {
  const AttachSession& session = *sessions_.at(id);
  if (!packet.ok() && absl::IsUnavailable(packet.status())) {
    Detach(id, packet.status(), ProcessAlive(session.peer));
    return false;
  }
  v1::ClientMessage message;
  absl::Status bad = packet.status();
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
  if (!bad.ok()) {
    End(id, bad);
    return false;
  }
  observer_.OnClientMessage(session, message);
  return sessions_.count(id) != 0;
}

void AttachServer::OnProcessEnded(SessionId id) {
  Detach(id, absl::UnavailableError("the client's process has ended"), /*process_alive=*/false);
}

void AttachServer::Send(SessionId id, const v1::ServerMessage& message, PacketChannel::Fds fds) {
  const auto it = sessions_.find(id);
  if (it == sessions_.end()) return;
  PacketChannel& channel = *it->second->channel;
  if (message.has_joined()) it->second->has_arenas = true;
  const absl::Status sent = channel.Send(message.SerializeAsString(), std::move(fds));
  if (!sent.ok()) {
    // Not from here: the caller may be looking at the session.
    loop_.Post([this, id, sent] { End(id, sent); });
    return;
  }
  if (channel.wants_write()) loop_.SetEvents(channel.fd(), EPOLLIN | EPOLLOUT);
}

absl::Status AttachServer::OpenSlots(SessionId id, const WorkerName& worker) {
  const auto it = sessions_.find(id);
  if (it == sessions_.end()) return absl::UnavailableError("the session has ended");
  std::map<WorkerName, SessionSlots>& slots = it->second->slots;
  if (slots.count(worker) > 0) return absl::OkStatus();
  absl::StatusOr<SessionSlots> made = MakeSlots(id, options_.incarnation);
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

void AttachServer::Detach(SessionId id, const absl::Status& reason, bool process_alive) {
  const auto it = sessions_.find(id);
  const std::unique_ptr<AttachSession> session = std::move(it->second);
  sessions_.erase(it);
  loop_.Remove(session->channel->fd());
  if (session->peer.pidfd.valid()) loop_.Remove(session->peer.pidfd.get());
  Log(LogLevel::kInfo, "session ended",
      {{"session", id.value},
       {"pid", session->peer.pid},
       {"client", session->client_name},
       {"why", reason.message()}});
  observer_.OnDetached(*session, reason, process_alive);
}

void AttachServer::Tick(absl::Time now) {
  if (now >= accept_again_ && listener_.valid()) {
    accept_again_ = absl::InfiniteFuture();
    loop_.SetEvents(listener_.get(), EPOLLIN);
  }
  std::vector<int> late;
  for (const auto& [fd, pending] : pending_) {
    if (now >= pending.deadline) late.push_back(fd);
  }
  for (const int fd : late) {
    RefusePending(fd, absl::DeadlineExceededError(absl::StrCat(
                          "no Attach within ", absl::FormatDuration(options_.attach_deadline))));
  }
}

absl::Time AttachServer::NextDeadline() const {
  absl::Time next = listener_.valid() ? accept_again_ : absl::InfiniteFuture();
  for (const auto& [fd, pending] : pending_) next = std::min(next, pending.deadline);
  return next;
}

void AttachServer::StopAccepting(const absl::Status& status) {
  refusal_ = status;
  if (!listener_.valid()) return;
  // Whoever is in the queue already learns why; closing it would only reset them.
  while (AcceptOne()) {
  }
  while (!pending_.empty()) RefusePending(pending_.begin()->first, status);
  loop_.Remove(listener_.get());
  listener_.reset();
}

}  // namespace epd
