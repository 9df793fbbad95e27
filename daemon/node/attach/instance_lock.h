// One epd per socket path: a lock file beside it, held by flock for as long as this epd lives.
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/unique_fd.h"

namespace epd {

class InstanceLock {
 public:
  // Takes `<socket_path>.lock`. The lock ends with the process, however it ends, so a file left by
  // a killed epd does no harm. While another epd holds it: if that one still serves `socket_path`
  // this fails at once; if it is on its way out (it no longer listens) this waits for up to
  // `patience`. Blocking.
  // One that lives and whose lock file was removed keeps its socket, too.
  //   ALREADY_EXISTS       another epd (its pid is named) serves this socket, or does not end in time
  //   PERMISSION_DENIED    the file cannot be made or opened
  //   FAILED_PRECONDITION  the file system has no locks
  static absl::StatusOr<InstanceLock> Take(const std::string& socket_path, absl::Duration patience);

  // Goes on with the lock that another program of this process took.
  static InstanceLock Adopt(const std::string& socket_path, UniqueFd fd) {
    return InstanceLock(PathOf(socket_path), std::move(fd));
  }
  int fd() const { return fd_.get(); }

  // Makes and takes the file again if it was removed or replaced; does not wait.
  //   ALREADY_EXISTS       another epd has taken its place: names its pid
  //   PERMISSION_DENIED, FAILED_PRECONDITION  as Take
  absl::Status Renew();

  InstanceLock(InstanceLock&&) = default;
  InstanceLock& operator=(InstanceLock&&) = delete;
  // Removes the file, then unlocks: whoever was waiting for it sees that the file it locked is
  // gone, and starts over.
  ~InstanceLock();

 private:
  static std::string PathOf(const std::string& socket_path) { return socket_path + ".lock"; }
  InstanceLock(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  std::string path_;
  UniqueFd fd_;
};

}  // namespace epd
