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
#include "absl/strings/str_join.h"

#ifndef SO_PEERPIDFD  // Linux 6.5.
#define SO_PEERPIDFD 77
#endif

namespace epd {
namespace {

std::vector<gid_t> ReadGroups(int socket, gid_t primary) {
  std::vector<gid_t> gids(1, primary);
  gid_t supplementary[1024];
  socklen_t size = sizeof supplementary;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, supplementary, &size) == 0)
    gids.insert(gids.end(), supplementary, supplementary + size / sizeof(gid_t));
  return gids;
}

// Invalid: errno says why, ENOPROTOOPT that this kernel shows no processes of other namespaces.
UniqueFd OpenPidfd(int socket, pid_t pid) {
  int pidfd = -1;
  socklen_t size = sizeof pidfd;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) == 0) return UniqueFd(pidfd);
  if (errno != ENOPROTOOPT || pid == 0) return UniqueFd();
  return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

}  // namespace

absl::StatusOr<PeerCredentials> ReadPeer(int socket) {
  ucred kernel = {};
  socklen_t size = sizeof kernel;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &kernel, &size) != 0) {
    return absl::InternalError(absl::StrCat("SO_PEERCRED: ", std::strerror(errno)));
  }
  PeerCredentials peer;
  peer.pid = kernel.pid;
  peer.uid = kernel.uid;
  peer.gids = ReadGroups(socket, kernel.gid);
  peer.pidfd = OpenPidfd(socket, peer.pid);
  if (peer.pidfd.valid() || errno == ENOPROTOOPT) return peer;
  if (errno == ESRCH || errno == ENODATA)
    return absl::UnavailableError("the client's process has ended");
  return absl::ResourceExhaustedError(absl::StrCat(
      "epd has no descriptors left for this client (pidfd_open: ", std::strerror(errno),
      "); raise LimitNOFILE or end sessions"));
}

absl::Status CheckPeer(const PeerCredentials& peer, const AttachPolicy& policy) {
  if (peer.uid == policy.own || peer.uid == 0 || policy.uids.count(peer.uid) > 0)
    return absl::OkStatus();
  for (const gid_t gid : peer.gids) {
    if (policy.gids.count(gid) > 0) return absl::OkStatus();
  }
  const auto others = [](const char* setting, const std::set<uint32_t>& ids) {
    return ids.empty() ? "" : absl::StrCat(", ", setting, "=", absl::StrJoin(ids, ","));
  };
  return absl::PermissionDeniedError(
      absl::StrCat("got a client of uid ", peer.uid, ", expected uid ", policy.own, " (epd's) or 0",
                   others("attach_uids", policy.uids), others("attach_gids", policy.gids),
                   "; start an epd of your own, run as uid ", policy.own,
                   ", or have your uid added to the setting attach_uids"));
}

absl::StatusOr<WorkerSlots> MakeWorkerSlots(SessionId session, uint64_t incarnation,
                                            const shm::SlotsLayout& layout) {
  absl::StatusOr<SharedSegment> segment = CreateSlots(session.value, incarnation, layout);
  if (!segment.ok()) return segment.status();
  WorkerSlots slots;
  slots.layout = layout;
  slots.segment = *std::move(segment);
  slots.worker_event = std::make_shared<UniqueFd>(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (slots.worker_event->valid()) return slots;
  return absl::ResourceExhaustedError(
      absl::StrCat("epd has no descriptors left for this client (eventfd: ", std::strerror(errno),
                   "); raise LimitNOFILE or end sessions"));
}

absl::StatusOr<WorkerSlots> AdoptWorkerSlots(const shm::SlotsLayout& layout,
                                             std::shared_ptr<UniqueFd> segment,
                                             std::shared_ptr<UniqueFd> worker_event) {
  absl::StatusOr<SharedSegment> adopted = SharedSegment::Adopt(std::move(segment), layout.bytes());
  if (!adopted.ok()) return adopted.status();
  return WorkerSlots{layout, *std::move(adopted), std::move(worker_event)};
}

bool ProcessAlive(const PeerCredentials& peer) {
  if (!peer.pidfd.valid()) return true;
  pollfd ended = {peer.pidfd.get(), POLLIN, 0};
  return poll(&ended, 1, 0) == 0;
}

}  // namespace epd
