#include "daemon/node/attach/attach_listener.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/codec/codec.h"
#include "daemon/observe/log.h"
#include "daemon/observe/user_log.h"
#include "proto/failpoint/failpoint.h"

namespace epd {
namespace {

constexpr int kConnectionsPerTurn = 16;
constexpr int kMessagesRead = 16;  // SayGoodbye reads no more.
constexpr absl::Duration kRest = absl::Milliseconds(100);

UniqueFd OpenSpare() { return UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

UniqueFd Accept(const UniqueFd& listener) {
  return UniqueFd(
      EPD_FAILPOINT_CALL("epd.attach.no_descriptor", EMFILE,
                         accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)));
}

}  // namespace

// Closing a Unix socket with unread messages makes the peer lose what was sent to it, so they are
// read first.
void SayGoodbye(PacketChannel& channel, const absl::Status& why) {
  v1::ServerMessage message;
  *message.mutable_goodbye()->mutable_status() = ToProto(why);
  const absl::Status sent = channel.Send(message.SerializeAsString());
  if (!sent.ok()) return;  // It does not listen.
  shutdown(channel.fd(), SHUT_RDWR);
  for (int i = 0; i < kMessagesRead; ++i) {
    bool would_block = false;
    if (!channel.Receive(&would_block).ok() || would_block) return;
  }
}

void RefuseClient(PacketChannel& channel, const PeerCredentials& peer, const absl::Status& why) {
  // Somebody only looked whether epd is there, or epd is ending.
  if (absl::IsUnavailable(why)) {
    Log(LogLevel::kDebug, "connection refused", {{"pid", peer.pid}, {"why", why.message()}});
  } else {
    LogOfUser(peer.uid, LogLevel::kWarn, "connection refused",
              {{"pid", peer.pid}, {"why", why.message()}});
  }
  SayGoodbye(channel, why);
}

AttachListener::AttachListener(Options options, EventLoop& loop, OnArrival on_arrival)
    : options_(std::move(options)),
      loop_(loop),
      on_arrival_(std::move(on_arrival)),
      spare_(OpenSpare()) {}

AttachListener::~AttachListener() {
  if (listener_.valid()) loop_.Remove(listener_.get());
  for (auto& [fd, pending] : pending_) loop_.Remove(fd);
}

absl::Status AttachListener::Start(UniqueFd listener) {
  absl::Status added = loop_.Add(listener.get(), EPOLLIN, [this](uint32_t) { OnListener(); });
  if (!added.ok()) return added;
  if (listener_.valid()) {
    while (AcceptOne()) continue;
    loop_.Remove(listener_.get());
  }
  listener_ = std::move(listener);
  return absl::OkStatus();
}

std::vector<int> AttachListener::unattached() const {
  std::vector<int> out;
  for (const auto& [fd, pending] : pending_) out.push_back(fd);
  return out;
}

void AttachListener::OnListener() {
  for (int i = 0; i < kConnectionsPerTurn; ++i) {
    if (!AcceptOne()) return;
  }
}

bool AttachListener::AcceptOne() {
  UniqueFd socket = Accept(listener_);
  if (socket.valid()) {
    Admit(std::move(socket));
    return true;
  }
  if (errno == EMFILE || errno == ENFILE) RefuseWithSpareFd();
  return errno == EINTR || errno == ECONNABORTED;
}

// Without this the listener would stay readable and the loop would spin; where not even this helps,
// because the limit was lowered below what is open, the listener rests for a moment.
void AttachListener::RefuseWithSpareFd() {
  spare_.reset();
  UniqueFd socket = Accept(listener_);
  const bool taken = socket.valid();
  if (taken) {
    PacketChannel channel(std::move(socket));
    SayGoodbye(channel, absl::ResourceExhaustedError(
                            "epd has no descriptors left; raise LimitNOFILE or end sessions"));
  }
  LogOfUser(kNoUid, LogLevel::kError, "no descriptors left for a client", {});
  spare_ = OpenSpare();
  if (taken) return;
  loop_.SetEvents(listener_.get(), 0);
  accept_again_ = MonotonicNow() + kRest;
}

absl::Status AttachListener::CheckRoom(uid_t uid, const Limits& limits) const {
  std::set<pid_t> pids;
  size_t num_of_uid = 0;
  for (const auto& [fd, pending] : pending_) {
    if (pending.peer.uid != uid) continue;
    ++num_of_uid;
    pids.insert(pending.peer.pid);
  }
  if (num_of_uid >= limits.unattached_per_uid) {
    return absl::ResourceExhaustedError(absl::StrCat(
        num_of_uid, " connections of uid ", uid, " (pid ", absl::StrJoin(pids, ", "),
        ") wait to attach, the most that one uid may have (max_unattached_per_uid); retry when "
        "they have"));
  }
  if (pending_.size() < limits.unattached) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(pending_.size(), " connections wait to attach, ", num_of_uid, " of them of uid ",
                   uid, ", the most there may be (max_unattached); retry when they have"));
}

void AttachListener::Admit(UniqueFd socket) {
  absl::StatusOr<PeerCredentials> peer = ReadPeer(socket.get());
  const Limits limits = options_.limits();
  auto channel =
      std::make_unique<PacketChannel>(std::move(socket), kMaxQueuedPackets, limits.queued_bytes);
  absl::Status refused = peer.status();
  if (refused.ok()) refused = refusal_;
  if (refused.ok()) refused = CheckPeer(*peer, options_.policy);
  if (refused.ok()) refused = CheckRoom(peer->uid, limits);
  const int fd = channel->fd();
  if (refused.ok()) refused = loop_.Add(fd, EPOLLIN, [this, fd](uint32_t) { OnPending(fd); });
  if (!refused.ok()) {
    PeerCredentials nobody;
    nobody.uid = kNoUid;
    return RefuseClient(*channel, peer.ok() ? *peer : nobody, refused);
  }
  pending_[fd] = Pending{*std::move(peer), std::move(channel), limits.deadline,
                         MonotonicNow() + limits.deadline};
}

AttachListener::Pending AttachListener::Release(int fd) {
  loop_.Remove(fd);
  Pending released = std::move(pending_.at(fd));
  pending_.erase(fd);
  return released;
}

void AttachListener::Refuse(int fd, const absl::Status& why) {
  const Pending refused = Release(fd);
  RefuseClient(*refused.channel, refused.peer, why);
}

void AttachListener::OnPending(int fd) {
  bool would_block = false;
  const absl::StatusOr<Packet> packet = pending_.at(fd).channel->Receive(&would_block);
  if (would_block) return;
  if (!packet.ok()) return Refuse(fd, packet.status());
  v1::ClientMessage message;
  const bool brings_fds = packet->lost_fds || !packet->fds.empty();
  if (brings_fds || !message.ParseFromString(packet->bytes) || !message.has_attach()) {
    return Refuse(
        fd, absl::InvalidArgumentError(absl::StrCat(
                "the first message: got ", packet->bytes.size(), " bytes and ", packet->fds.size(),
                " descriptors that are no Attach, expected a ClientMessage with `attach`")));
  }
  EPD_FAILPOINT("epd.attach.arrived");
  Pending attached = Release(fd);
  on_arrival_({std::move(attached.peer), std::move(attached.channel), message.attach()});
}

void AttachListener::Tick(absl::Time now) {
  if (now >= accept_again_ && listener_.valid()) {
    accept_again_ = absl::InfiniteFuture();
    loop_.SetEvents(listener_.get(), EPOLLIN);
  }
  std::vector<int> late;
  for (const auto& [fd, pending] : pending_) {
    if (now >= pending.deadline) late.push_back(fd);
  }
  for (const int fd : late) {
    Refuse(fd, absl::DeadlineExceededError(
                   absl::StrCat("no Attach within ", absl::FormatDuration(pending_.at(fd).allowed),
                                " (attach_deadline)")));
  }
}

absl::Time AttachListener::NextDeadline() const {
  absl::Time next = listener_.valid() ? accept_again_ : absl::InfiniteFuture();
  for (const auto& [fd, pending] : pending_) next = std::min(next, pending.deadline);
  return next;
}

void AttachListener::Stop(const absl::Status& why) {
  refusal_ = why;
  if (!listener_.valid()) return;
  // Whoever is in the queue already learns why; closing it would only reset them.
  while (AcceptOne()) {
  }
  while (!pending_.empty()) Refuse(pending_.begin()->first, why);
  loop_.Remove(listener_.get());
  listener_.reset();
}

}  // namespace epd
