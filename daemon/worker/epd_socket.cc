#include "daemon/worker/epd_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace epd {
namespace {

constexpr size_t kMaxBytes = 256 * 1024;  // Of a message; worker.proto.
constexpr size_t kMaxFds = 250;           // The kernel's limit is 253.
constexpr size_t kMaxWaiting = 4096;

void TakeFds(msghdr& header, std::vector<UniqueFd>& fds) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
      fds.emplace_back(fd);
    }
  }
}

}  // namespace

EpdSocket::EpdSocket(UniqueFd socket) : socket_(std::move(socket)), buffer_(kMaxBytes, '\0') {
  const int bytes = 2 * kMaxBytes;
  setsockopt(socket_.get(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

absl::StatusOr<std::optional<EpdMessage>> EpdSocket::Receive() {
  iovec part = {buffer_.data(), buffer_.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))];
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  ssize_t got = 0;
  do {
    got = recvmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::nullopt;
  if (got <= 0) {
    return absl::UnavailableError(absl::StrCat("epd closed the control socket", got < 0 ? ": " : "",
                                               got < 0 ? std::strerror(errno) : ""));
  }
  EpdMessage message;
  TakeFds(header, message.fds);
  if ((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 ||
      !message.body.ParseFromArray(buffer_.data(), static_cast<int>(got))) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message of ", got,
                     " bytes that is not of worker.proto; epd and epd-worker are of "
                     "different builds"));
  }
  return message;
}

absl::StatusOr<bool> EpdSocket::TrySend(const std::string& bytes, const std::vector<int>& fds) {
  iovec part = {const_cast<char*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))] = {};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(c), fds.data(), fds.size() * sizeof(int));
  }
  while (sendmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
    const std::string why = std::strerror(errno);
    if (errno == EPIPE || errno == ECONNRESET)
      return absl::UnavailableError(absl::StrCat("epd is gone: ", why));
    return absl::ResourceExhaustedError(absl::StrCat("sending ", bytes.size(), " bytes and ",
                                                     fds.size(), " descriptors to epd: ", why));
  }
  return true;
}

absl::Status EpdSocket::Send(const v1::FromWorker& message, const std::vector<int>& fds) {
  Waiting waiting{.bytes = message.SerializeAsString(), .fds = {}};
  if (waiting.bytes.size() > kMaxBytes || fds.size() > kMaxFds) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a message of ", waiting.bytes.size(), " bytes with ", fds.size(),
                     " descriptors to epd; the limits are ", kMaxBytes, " and ", kMaxFds));
  }
  if (queue_.empty()) {
    const absl::StatusOr<bool> sent = TrySend(waiting.bytes, fds);
    if (!sent.ok()) return sent.status();
    if (*sent) return absl::OkStatus();
  }
  if (queue_.size() >= kMaxWaiting) {
    return absl::ResourceExhaustedError(
        absl::StrCat("epd has not read ", kMaxWaiting, " messages of its worker"));
  }
  for (const int fd : fds) waiting.fds.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  queue_.push_back(std::move(waiting));
  return absl::OkStatus();
}

absl::Status EpdSocket::Flush() {
  while (!queue_.empty()) {
    std::vector<int> fds;
    for (const UniqueFd& fd : queue_.front().fds) fds.push_back(fd.get());
    const absl::StatusOr<bool> sent = TrySend(queue_.front().bytes, fds);
    if (!sent.ok()) return sent.status();
    if (!*sent) return absl::OkStatus();
    queue_.pop_front();
  }
  return absl::OkStatus();
}

}  // namespace epd
