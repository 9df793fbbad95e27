#include "daemon/node/process.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "daemon/core/unique_fd.h"
#include "proto/epd/v1/text.h"

namespace epd {

void PrepareProcess() {
  int fd;
  do {
    fd = open("/dev/null", O_RDWR);  // Inherited by the worker, so not close-on-exec.
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) close(fd);
  umask(077);
  if (std::getenv("EPD_DUMPABLE") == nullptr) prctl(PR_SET_DUMPABLE, 0);
  rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
}

void NotifySupervisor(const std::string& state) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  if (path == nullptr || (path[0] != '/' && path[0] != '@')) return;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const size_t length = std::strlen(path);
  if (length >= sizeof address.sun_path) return;
  std::memcpy(address.sun_path, path, length);
  if (path[0] == '@') address.sun_path[0] = '\0';  // An abstract socket.
  const UniqueFd socket_fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length);
  sendto(socket_fd.get(), state.data(), state.size(), MSG_NOSIGNAL,
         reinterpret_cast<const sockaddr*>(&address), size);
}

absl::Status SupervisorWatchdog::Start(EventLoop& loop) {
  const char* asked = std::getenv("WATCHDOG_USEC");
  const char* of_whom = std::getenv("WATCHDOG_PID");
  int64_t microseconds = 0;
  int pid = 0;
  if (asked == nullptr || !absl::SimpleAtoi(asked, &microseconds) || microseconds <= 0)
    return absl::OkStatus();
  if (of_whom != nullptr && (!absl::SimpleAtoi(of_whom, &pid) || pid != getpid()))
    return absl::OkStatus();
  timer_.reset(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  const timespec half = absl::ToTimespec(absl::Microseconds(microseconds) / 2);
  const itimerspec every = {.it_interval = half, .it_value = half};
  if (!timer_.valid() || timerfd_settime(timer_.get(), 0, &every, nullptr) != 0)
    return absl::ResourceExhaustedError(absl::StrCat("timerfd: ", std::strerror(errno)));
  return loop.Add(timer_.get(), EPOLLIN, [fd = timer_.get()](uint32_t) {
    uint64_t times;
    if (read(fd, &times, sizeof times) == sizeof times) NotifySupervisor("WATCHDOG=1");
  });
}

std::string HostName() {
  char name[HOST_NAME_MAX + 1] = {};
  if (gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return "localhost";
  return text::Clean(name, sizeof name);
}

}  // namespace epd
