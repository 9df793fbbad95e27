#include "client/c/attach_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <thread>
#include <utility>

#include "client/c/attach_messages.h"
#include "client/c/running_deadline.h"
#include "client/c/stale_socket.h"
#include "client/c/trusted_server.h"
#include "proto/epd/v1/descriptors_ahead.h"
#include "proto/epd/v1/limits.h"
#include "proto/failpoint/failpoint.h"

namespace epd::client {
namespace {

constexpr size_t kMaxFds = 253;  // SCM_MAX_FD.

// Milliseconds for poll(), rounded up so that it does not spin through the last one.
int PollTimeout(Clock::time_point deadline) {
  const Clock::time_point now = Clock::now();
  if (deadline <= now) return 0;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - now).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

Status NotConnected(const std::string& path, int error) {
  if (error == ENOENT || error == ECONNREFUSED || error == ENOTDIR) {
    const std::string never = WhyNoneCanAnswer(path);
    if (!never.empty()) return {Code::kFailedPrecondition, never};
    if (error == ECONNREFUSED) RemoveStaleFiles(path);
    return MakeStatus(Code::kNotFound, "%s: %s", path.c_str(), std::strerror(error));
  }
  if (error == EACCES || error == EPERM) {
    return MakeStatus(Code::kPermissionDenied,
                      "%s: %s: it is another user's, or lies in a folder that user %u may not "
                      "enter; set EPD_SOCKET to a socket that this user may use",
                      path.c_str(), std::strerror(error), geteuid());
  }
  return MakeStatus(Code::kUnavailable, "%s: %s", path.c_str(), std::strerror(error));
}

void TakeFds(msghdr& header, std::vector<UniqueFd>* fds) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t num_fds = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < num_fds; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
      fds->emplace_back(fd);
    }
  }
}

}  // namespace

Status AttachSocket::Connect(const std::string& path, Clock::time_point deadline,
                             AttachSocket* out) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return MakeStatus(Code::kInvalidArgument,
                      "the socket path has %zu bytes and may have %zu: %s; use a shorter one",
                      path.size(), sizeof address.sun_path - 1, path.c_str());
  }
  std::memcpy(address.sun_path, path.c_str(), path.size());
  UniqueFd fd(
      EPD_FAILPOINT_CALL("client.attach.no_descriptor", EMFILE,
                         socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
  if (!fd.valid()) {
    const bool no_room = errno == EMFILE || errno == ENFILE;
    return MakeStatus(no_room ? Code::kResourceExhausted : Code::kUnavailable,
                      "socket(AF_UNIX): %s%s", std::strerror(errno),
                      no_room ? "; raise the limit of open files (ulimit -n) or close some" : "");
  }
  // A Unix socket connects at once, or says EAGAIN while the backlog is full.
  while (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN || Clock::now() >= deadline) return NotConnected(path, errno);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EPD_FAILPOINT("client.attach.connected");
  if (Status bad = CheckServer(fd.get(), path); !bad.ok()) return bad;
  out->fd_ = std::move(fd);
  return {};
}

Status AttachSocket::Send(std::string_view bytes) {
  const Clock::time_point deadline = Clock::now() + std::chrono::seconds(5);
  while (true) {
    const ssize_t sent = EPD_FAILPOINT_CALL(
        "client.socket.send", EPIPE, send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL));
    if (sent >= 0) return {};
    if (errno == EINTR) continue;
    if (errno != EAGAIN || Clock::now() >= deadline) {
      return MakeStatus(Code::kUnavailable, "the daemon takes no message: %s",
                        std::strerror(errno));
    }
    pollfd poller = {fd_.get(), POLLOUT, 0};
    poll(&poller, 1, PollTimeout(deadline));
  }
}

bool AttachSocket::WaitReadable(Clock::time_point deadline) const {
  // Whoever waits for ever has a thread for it, which is not to wake up now and then.
  constexpr std::chrono::hours kEver{24};
  const Clock::time_point begin = Clock::now();
  const bool ends = deadline < begin + kEver;
  RunningDeadline limit(deadline, begin);
  while (true) {
    pollfd poller = {fd_.get(), POLLIN, 0};
    if (poll(&poller, 1, PollTimeout(ends ? limit.NextLook() : deadline)) > 0) return true;
    const Clock::time_point now = Clock::now();
    if (ends ? limit.Passed(now) : now >= deadline) return false;
  }
}

Status NoDescriptors() {
  rlimit files = {};
  getrlimit(RLIMIT_NOFILE, &files);
  return MakeStatus(
      Code::kResourceExhausted,
      "this process has no room for the descriptors that the daemon sent: it may have "
      "%llu open files; raise the limit (ulimit -n) or close some",
      static_cast<unsigned long long>(files.rlim_cur));
}

Status AttachSocket::Receive(Clock::time_point deadline, Datagram* datagram) {
  while (true) {
    if (Status s = ReceiveOne(deadline, datagram); !s.ok()) return s;
    std::move(datagram->fds.begin(), datagram->fds.end(), std::back_inserter(ahead_));
    ahead_lacks_fds_ = ahead_lacks_fds_ || datagram->lacks_fds;
    if (datagram->bytes == kDescriptorsAhead) continue;
    datagram->fds = std::exchange(ahead_, {});
    datagram->lacks_fds = std::exchange(ahead_lacks_fds_, false);
    return {};
  }
}

Status AttachSocket::ReceiveOne(Clock::time_point deadline, Datagram* datagram) {
  std::string buffer(limits::kDatagramBytes, '\0');
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))];
  while (true) {
    iovec part = {buffer.data(), buffer.size()};
    msghdr header = {};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    const ssize_t got = EPD_FAILPOINT_CALL("client.socket.receive", ECONNRESET,
                                           recvmsg(fd_.get(), &header, MSG_CMSG_CLOEXEC));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) {
      if (!WaitReadable(deadline)) return MakeStatus(Code::kDeadlineExceeded, "no message came");
      continue;
    }
    if (got <= 0) return MakeStatus(Code::kUnavailable, "the daemon closed the session");
    datagram->fds.clear();
    TakeFds(header, &datagram->fds);
    if ((header.msg_flags & MSG_TRUNC) != 0)
      return MakeStatus(Code::kDataLoss, "a message of the daemon was cut off");
    datagram->lacks_fds = (header.msg_flags & MSG_CTRUNC) != 0;
    buffer.resize(static_cast<size_t>(got));
    EPD_FAILPOINT_FLIP("client.socket.bytes", buffer.data(), buffer.size());
    datagram->bytes = std::move(buffer);
    return {};
  }
}

void AttachSocket::Shutdown() {
  if (fd_.valid()) shutdown(fd_.get(), SHUT_RDWR);
}

}  // namespace epd::client
