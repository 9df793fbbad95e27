#include "daemon/node/attach/instance_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/node/attach/socket_file.h"
#include "daemon/node/loop/event_loop.h"

namespace epd {
namespace {

constexpr absl::Duration kRetry = absl::Milliseconds(20);
// A process that was killed closes its lock a moment before its socket.
constexpr absl::Duration kDying = absl::Seconds(1);

bool IsStillAt(int fd, const std::string& path) {
  struct stat held;
  struct stat there;
  return fstat(fd, &held) == 0 && stat(path.c_str(), &there) == 0 && held.st_ino == there.st_ino &&
         held.st_dev == there.st_dev;
}

std::string ReadPid(int fd) {
  char text[32] = {};
  const ssize_t got = pread(fd, text, sizeof text - 1, 0);
  const std::string pid(
      absl::StripAsciiWhitespace(absl::string_view(text, got > 0 ? static_cast<size_t>(got) : 0)));
  return pid.empty() ? "unknown" : pid;
}

// Of flock. A file system that has no locks says so each time: waiting for it is in vain.
absl::Status WhyNoLock(int error, const std::string& path) {
  if (error == EWOULDBLOCK || error == EINTR) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "cannot lock '", path, "': ", std::strerror(error),
      "; the file system there has no locks (flock), which keep two epds from one socket: choose a "
      "--socket on a local one, such as /run"));
}

absl::StatusOr<UniqueFd> OpenLock(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (fd.valid()) return fd;
  return absl::PermissionDeniedError(
      absl::StrCat("cannot open the lock file '", path, "': ", std::strerror(errno)));
}

void WritePid(int fd) {
  const std::string pid = absl::StrCat(getpid(), "\n");
  // The pid is for people; the lock holds without it.
  [[maybe_unused]] const int truncated = ftruncate(fd, 0);
  [[maybe_unused]] const ssize_t written = pwrite(fd, pid.data(), pid.size(), 0);
}

}  // namespace

absl::StatusOr<InstanceLock> InstanceLock::Take(const std::string& socket_path,
                                                absl::Duration patience) {
  const std::string path = PathOf(socket_path);
  const absl::Time deadline = MonotonicNow() + patience;
  const absl::Time dying = MonotonicNow() + kDying;
  for (;;) {
    absl::StatusOr<UniqueFd> opened = OpenLock(path);
    if (!opened.ok()) return opened.status();
    UniqueFd fd = *std::move(opened);
    if (flock(fd.get(), LOCK_EX | LOCK_NB) == 0) {
      if (!IsStillAt(fd.get(), path)) continue;  // Its last holder has just removed it.
      // One that lives has lost its lock file: to a cleaner of old files, or to a hand.
      const std::string who = WhoListens(socket_path);
      if (who.empty()) {
        WritePid(fd.get());
        return InstanceLock(path, std::move(fd));
      }
      if (MonotonicNow() >= std::min(deadline, dying)) {
        unlink(path.c_str());
        return absl::AlreadyExistsError(absl::StrCat(
            who, " serves this socket, '", socket_path, "', though nobody holds '", path,
            "', which somebody has removed; use it, stop it, or give this one another --socket"));
      }
      fd.reset();
      absl::SleepFor(kRetry);
      continue;
    }
    if (absl::Status bad = WhyNoLock(errno, path); !bad.ok()) return bad;
    const std::string holder = ReadPid(fd.get());
    if (SomebodyListens(socket_path)) {
      return absl::AlreadyExistsError(
          absl::StrCat("another epd (pid ", holder, ") serves this socket, '", socket_path,
                       "'; use it, stop it, or give this one another --socket"));
    }
    if (MonotonicNow() >= deadline) {
      return absl::AlreadyExistsError(
          absl::StrCat("another epd (pid ", holder, ") holds '", path,
                       "' without serving: it starts or ends; wait for it, or stop it"));
    }
    absl::SleepFor(kRetry);
  }
}

absl::Status InstanceLock::Renew() {
  if (IsStillAt(fd_.get(), path_)) return absl::OkStatus();
  absl::StatusOr<UniqueFd> fd = OpenLock(path_);
  if (!fd.ok()) return fd.status();
  if (flock(fd->get(), LOCK_EX | LOCK_NB) != 0) {
    if (absl::Status bad = WhyNoLock(errno, path_); !bad.ok()) return bad;
    return absl::AlreadyExistsError(absl::StrCat("another epd (pid ", ReadPid(fd->get()),
                                                 ") has its lock file '", path_,
                                                 "' now; stop one of the two"));
  }
  if (!IsStillAt(fd->get(), path_)) return absl::UnavailableError("the lock file changes; again");
  WritePid(fd->get());
  fd_ = *std::move(fd);
  return absl::OkStatus();
}

InstanceLock::~InstanceLock() {
  if (fd_.valid() && IsStillAt(fd_.get(), path_)) unlink(path_.c_str());
}

}  // namespace epd
