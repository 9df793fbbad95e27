#include "daemon/worker/peer_streams/node_streams.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <variant>

#include "absl/strings/str_cat.h"
#include "daemon/worker/peer_streams/frame.h"

namespace epd {
namespace {

constexpr int kMaxEvents = 16;

absl::Status NoDescriptor(const char* call) {
  return absl::ResourceExhaustedError(absl::StrCat(call, ": ", std::strerror(errno)));
}

bool IsLater(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

NodeStreams::NodeStreams(std::string node, Incarnation self, RemoteRegions& landing,
                         Traffic& traffic)
    : node_(std::move(node)),
      self_(self),
      landing_(landing),
      traffic_(traffic),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      status_(epoll_.valid() ? absl::OkStatus() : NoDescriptor("epoll_create1")) {}

void NodeStreams::Meet(Incarnation peer) {
  Stream& stream = streams_[peer];
  if (stream.socket.valid() || stream.over || peer < self_) return;
  int ends[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    return End(peer, stream, absl::StrCat("socketpair: ", std::strerror(errno)));
  }
  ends_.push_back({peer, UniqueFd(ends[1])});
  Connect(peer, stream, UniqueFd(ends[0]));
}

void NodeStreams::Adopt(Incarnation peer, UniqueFd socket) {
  Stream& stream = streams_[peer];
  if (stream.socket.valid() || stream.over) {
    adopted_[peer] = std::move(socket);
    return;
  }
  Connect(peer, stream, std::move(socket));
}

void NodeStreams::Connect(Incarnation peer, Stream& stream, UniqueFd socket) {
  stream.socket = std::move(socket);
  stream.frames =
      std::make_unique<FramesIn>(FramesIn::From{peer, node_, Counted()}, landing_,
                                 [this](WireEvent event) { events_.push_back(std::move(event)); });
  if (absl::Status watched = Watch(peer, stream, EPOLL_CTL_ADD); !watched.ok()) {
    return End(peer, stream, std::string(watched.message()));
  }
  Send(peer, stream);
}

absl::Status NodeStreams::Watch(Incarnation peer, const Stream& stream, int operation) {
  epoll_event event = {};
  event.events = EPOLLIN | (stream.watches_write ? static_cast<uint32_t>(EPOLLOUT) : 0u);
  event.data.u64 = peer.value;
  if (epoll_ctl(epoll_.get(), operation, stream.socket.get(), &event) == 0) {
    return absl::OkStatus();
  }
  return NoDescriptor("epoll_ctl");
}

void NodeStreams::Enqueue(Incarnation peer, const grpc::ByteBuffer& message) {
  const auto found = streams_.find(peer);
  if (found == streams_.end() || found->second.over) return;  // Its loss has been told.
  Stream& stream = found->second;
  std::vector<grpc::Slice> slices;
  if (!message.Dump(&slices).ok()) return;
  const auto bytes = static_cast<uint32_t>(message.Length());
  stream.out.append(reinterpret_cast<const char*>(&bytes), sizeof bytes);
  for (const grpc::Slice& slice : slices) {
    stream.out.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  ++stream.num_waiting;
  Counted()->queued_messages.fetch_add(1, std::memory_order_relaxed);
}

void NodeStreams::Flush(Incarnation peer) {
  const auto found = streams_.find(peer);
  if (found != streams_.end()) Send(peer, found->second);
}

void NodeStreams::Send(Incarnation peer, Stream& stream) {
  if (!stream.socket.valid() || stream.over) return;
  size_t sent = 0;
  while (sent < stream.out.size()) {
    const ssize_t bytes = send(stream.socket.get(), stream.out.data() + sent,
                               stream.out.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (bytes < 0 && errno == EINTR) continue;
    // What the peer said last is still to be read, and then its end.
    if (bytes < 0) break;
    sent += static_cast<size_t>(bytes);
  }
  stream.out.erase(0, sent);
  const bool waits = !stream.out.empty();
  if (!waits) CountNone(stream);
  if (waits == stream.watches_write) return;
  stream.watches_write = waits;
  if (absl::Status watched = Watch(peer, stream, EPOLL_CTL_MOD); !watched.ok()) {
    End(peer, stream, std::string(watched.message()));
  }
}

const std::shared_ptr<NodeTraffic>& NodeStreams::Counted() {
  if (counted_ == nullptr) counted_ = traffic_.Of(node_);
  return counted_;
}

void NodeStreams::CountNone(Stream& stream) {
  if (stream.num_waiting == 0) return;
  Counted()->queued_messages.fetch_sub(stream.num_waiting, std::memory_order_relaxed);
  stream.num_waiting = 0;
}

std::vector<WireEvent> NodeStreams::Take() {
  std::array<epoll_event, kMaxEvents> ready = {};
  const int count = streams_.empty() ? 0 : epoll_wait(epoll_.get(), ready.data(), kMaxEvents, 0);
  for (int i = 0; i < count; ++i) {
    const Incarnation peer(ready[static_cast<size_t>(i)].data.u64);
    const auto found = streams_.find(peer);
    if (found == streams_.end()) continue;
    if ((ready[static_cast<size_t>(i)].events & EPOLLOUT) != 0) Send(peer, found->second);
    // What is left keeps the descriptor readable.
    Read(peer, found->second, kTurnBytes);
  }
  return std::exchange(events_, {});
}

std::vector<WireEvent> NodeStreams::TakeLast(Incarnation peer) {
  const auto found = streams_.find(peer);
  // No more than the socket holds now, whoever goes on writing.
  int bytes = 0;
  if (found != streams_.end() && found->second.socket.valid() &&
      ioctl(found->second.socket.get(), FIONREAD, &bytes) == 0) {
    Read(peer, found->second, static_cast<size_t>(bytes));
  }
  return std::exchange(events_, {});
}

void NodeStreams::Read(Incarnation peer, Stream& stream, size_t most) {
  while (!stream.over && most > 0) {
    const size_t asked = std::min(most, chunk_.size());
    const ssize_t bytes = recv(stream.socket.get(), chunk_.data(), asked, MSG_DONTWAIT);
    if (bytes < 0 && IsLater(errno)) return;
    if (bytes < 0) return End(peer, stream, std::strerror(errno));
    if (bytes == 0) return End(peer, stream, "the other side has closed it");
    stream.in.append(chunk_.data(), static_cast<size_t>(bytes));
    const grpc::Status taken = TakeMessages(stream);
    if (!taken.ok()) return End(peer, stream, taken.error_message());
    if (static_cast<size_t>(bytes) < asked) return;
    most -= asked;
  }
}

grpc::Status NodeStreams::TakeMessages(Stream& stream) {
  size_t taken = 0;
  grpc::Status status = grpc::Status::OK;
  while (status.ok() && stream.in.size() - taken >= sizeof(uint32_t)) {
    uint32_t bytes = 0;
    std::memcpy(&bytes, stream.in.data() + taken, sizeof bytes);
    if (bytes > kMaxBufferBytes) {
      return FramesIn::Bad(
          absl::StrCat("a message of ", bytes, " bytes, at most ", kMaxBufferBytes));
    }
    const size_t begin = taken + sizeof bytes;
    if (stream.in.size() - begin < bytes) break;
    const grpc::Slice slice(stream.in.data() + begin, bytes);
    BufferReader reader(grpc::ByteBuffer(&slice, 1));
    status = stream.frames->TakeOne(reader);
    taken = begin + bytes;
  }
  stream.in.erase(0, taken);
  return status;
}

void NodeStreams::End(Incarnation peer, Stream& stream, const std::string& why) {
  stream.over = true;
  stream.socket.reset();
  CountNone(stream);
  stream.out.clear();
  stream.in.clear();
  events_.push_back(PeerGone{
      peer, absl::UnavailableError(absl::StrCat("its stream within this node has ended: ", why))});
}

void NodeStreams::Forget(Incarnation peer) {
  const auto found = streams_.find(peer);
  if (found == streams_.end()) return;
  CountNone(found->second);
  streams_.erase(found);
  std::erase_if(events_, [peer](const WireEvent& event) {
    const auto* gone = std::get_if<PeerGone>(&event);
    return gone != nullptr && gone->peer == peer;
  });
  const auto adopted = adopted_.find(peer);
  if (adopted == adopted_.end()) return;
  UniqueFd socket = std::move(adopted->second);
  adopted_.erase(adopted);
  Adopt(peer, std::move(socket));
}

void NodeStreams::Await(std::chrono::milliseconds most) {
  const auto deadline = std::chrono::steady_clock::now() + most;
  for (auto& [peer, stream] : streams_) {
    Send(peer, stream);
    while (!stream.out.empty() && stream.socket.valid()) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          deadline - std::chrono::steady_clock::now());
      pollfd writable = {.fd = stream.socket.get(), .events = POLLOUT, .revents = 0};
      if (left.count() <= 0) break;
      const int count = poll(&writable, 1, static_cast<int>(left.count()));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) break;
      if ((writable.revents & (POLLERR | POLLHUP)) != 0) break;
      Send(peer, stream);
    }
  }
}

}  // namespace epd
