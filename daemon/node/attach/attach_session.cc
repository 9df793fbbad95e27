#include "daemon/node/attach/attach_session.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace epd {

absl::StatusOr<PeerCredentials> ReadPeer(int socket) {
  ucred kernel = {};
  socklen_t size = sizeof kernel;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &kernel, &size) != 0) {
    return absl::InternalError(absl::StrCat("SO_PEERCRED: ", std::strerror(errno)));
  }
  PeerCredentials peer;
  peer.pid = kernel.pid;
  peer.uid = kernel.uid;
  if (peer.pid == 0) return peer;
  peer.pidfd.reset(static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0)));
  if (peer.pidfd.valid()) return peer;
  if (errno == ESRCH) return absl::UnavailableError("the client's process has ended");
  return absl::ResourceExhaustedError(absl::StrCat(
      "epd has no descriptors left for this client (pidfd_open: ", std::strerror(errno),
      "); raise LimitNOFILE or end sessions"));
}

absl::Status CheckPeer(uid_t peer, uid_t own) {
  if (peer == own || peer == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("got a client of uid ", peer, ", expected uid ", own,
                   " (epd's) or 0; start an epd of your own, or run as uid ", own));
}

absl::StatusOr<WorkerSlots> MakeWorkerSlots(SessionId session, uint64_t incarnation) {
  absl::StatusOr<SharedSegment> segment = CreateSlots(session.value, incarnation);
  if (!segment.ok()) return segment.status();
  WorkerSlots slots;
  slots.segment = *std::move(segment);
  slots.worker_event = std::make_shared<UniqueFd>(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (slots.worker_event->valid()) return slots;
  return absl::ResourceExhaustedError(
      absl::StrCat("epd has no descriptors left for this client (eventfd: ", std::strerror(errno),
                   "); raise LimitNOFILE or end sessions"));
}

bool ProcessAlive(const PeerCredentials& peer) {
  if (!peer.pidfd.valid()) return true;
  pollfd ended = {peer.pidfd.get(), POLLIN, 0};
  return poll(&ended, 1, 0) == 0;
}

}  // namespace epd
