#include "daemon/packet/packet.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "proto/epd/v1/limits.h"

namespace epd {
namespace {

absl::Status PeerGone(int error) {
  return absl::UnavailableError(absl::StrCat("the peer closed the socket: ", std::strerror(error)));
}

std::vector<UniqueFd> TakeFds(msghdr& message) {
  std::vector<UniqueFd> fds;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
  return fds;
}

}  // namespace

absl::StatusOr<SendResult> SendPacket(int socket, absl::string_view bytes,
                                      absl::Span<const int> fds) {
  iovec part = {const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(limits::kDatagramFds * sizeof(int))];
  if (fds.size() > limits::kDatagramFds) {
    return absl::ResourceExhaustedError(absl::StrCat("a message with ", fds.size(),
                                                     " descriptors; one message carries at most ",
                                                     limits::kDatagramFds));
  }
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    std::memset(control, 0, message.msg_controllen);
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(c), fds.data(), fds.size() * sizeof(int));
  }
  for (;;) {
    if (sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return SendResult::kSent;
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return SendResult::kWouldBlock;
    if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN) return PeerGone(errno);
    return absl::ResourceExhaustedError(absl::StrCat("sendmsg of ", bytes.size(), " bytes and ",
                                                     fds.size(),
                                                     " descriptors: ", std::strerror(errno)));
  }
}

absl::StatusOr<Packet> ReceivePacket(int socket, bool* would_block) {
  *would_block = false;
  // One byte more than allowed tells a message that is too long from one that just fits.
  static thread_local const std::unique_ptr<char[]> buffer(new char[limits::kDatagramBytes + 1]);
  alignas(cmsghdr) char control[CMSG_SPACE(limits::kDatagramFds * sizeof(int))];
  iovec part = {buffer.get(), limits::kDatagramBytes + 1};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t got;
  do {
    got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      *would_block = true;
      return Packet{};
    }
    return PeerGone(errno);
  }
  Packet packet;
  packet.fds = TakeFds(message);
  if (got == 0 && packet.fds.empty()) return absl::UnavailableError("the peer closed the socket");
  if (got == 0) return absl::InvalidArgumentError("a message without bytes");
  if ((message.msg_flags & MSG_TRUNC) != 0 || static_cast<size_t>(got) > limits::kDatagramBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message longer than ", limits::kDatagramBytes, " bytes"));
  }
  packet.lost_fds = (message.msg_flags & MSG_CTRUNC) != 0;
  if (packet.lost_fds) packet.fds.clear();
  packet.bytes.assign(buffer.get(), static_cast<size_t>(got));
  return packet;
}

void WidenSendBuffer(int socket) {
  const int bytes = 2 * static_cast<int>(limits::kDatagramBytes);
  // Needs CAP_NET_ADMIN; without it the second call gives what the system allows.
  if (setsockopt(socket, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes) == 0) return;
  setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

}  // namespace epd
