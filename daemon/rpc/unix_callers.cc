#include "daemon/rpc/unix_callers.h"

#include <grpcpp/server_posix.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

namespace epd {
absl::Status UnixCallers::Listen(const std::string& path) {
  absl::StatusOr<UniqueFd> listener = ListenAt(path, SOCK_STREAM, 0600);
  if (!listener.ok()) {
    return absl::Status(listener.status().code(),
                        absl::StrCat("cannot serve gRPC on '", path,
                                     "' (grpc_socket): ", listener.status().message()));
  }
  if (listener_.valid()) loop_.Remove(listener_.get());
  rests_ = false;
  listener_ = *std::move(listener);
  file_ = SocketFile(path);
  return absl::OkStatus();
}

absl::Status UnixCallers::Serve(grpc::Server& server) {
  return loop_.Add(listener_.get(), EPOLLIN, [this, &server](uint32_t) { Accept(server); });
}

void UnixCallers::Accept(grpc::Server& server) {
  const int fd = accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) {
    rests_ = errno == EMFILE || errno == ENFILE;
    if (rests_) loop_.SetEvents(listener_.get(), 0);
    return;
  }
  ucred peer = {};
  socklen_t size = sizeof peer;
  getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size);
  {
    const absl::MutexLock lock(&mutex_);
    callers_[absl::StrCat("fd:", fd)] = {peer.pid, peer.uid};
  }
  grpc::AddInsecureChannelFromFd(&server, fd);
}

void UnixCallers::Resume() {
  if (listener_.valid() && std::exchange(rests_, false)) loop_.SetEvents(listener_.get(), EPOLLIN);
}

void UnixCallers::Stop() {
  if (!listener_.valid()) return;
  loop_.Remove(listener_.get());
  file_.Remove();
  listener_.reset();
}

std::optional<uid_t> UnixCallers::UidOf(const grpc::ServerContextBase& context) const {
  const absl::MutexLock lock(&mutex_);
  const auto caller = callers_.find(context.peer());
  if (caller == callers_.end()) return std::nullopt;
  return caller->second.uid;
}

std::string UnixCallers::Describe(const grpc::ServerContextBase& context) const {
  {
    const absl::MutexLock lock(&mutex_);
    const auto caller = callers_.find(context.peer());
    if (caller != callers_.end())
      return absl::StrCat("uid=", caller->second.uid, " pid=", caller->second.pid);
  }
  std::string text = absl::StrCat("peer=", context.peer());
  for (const char* property : {"x509_common_name", "x509_subject_alternative_name"}) {
    const auto names = context.auth_context()->FindPropertyValues(property);
    if (names.empty()) continue;
    return absl::StrCat(text, " certificate=", absl::string_view(names[0].data(), names[0].size()));
  }
  return text;
}

}  // namespace epd
