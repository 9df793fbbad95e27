#include "daemon/node/attach/socket_watch.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "daemon/observe/log.h"

namespace epd {
namespace {

constexpr absl::Duration kPeriod = absl::Seconds(1);

}  // namespace

absl::Status SocketWatch::Start(EventLoop& loop) {
  timer_.reset(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  const timespec period = absl::ToTimespec(kPeriod);
  const itimerspec every = {.it_interval = period, .it_value = period};
  if (!timer_.valid() || timerfd_settime(timer_.get(), 0, &every, nullptr) != 0)
    return absl::ResourceExhaustedError(absl::StrCat("timerfd: ", std::strerror(errno)));
  return loop.Add(timer_.get(), EPOLLIN, [this](uint32_t) {
    uint64_t times;
    if (read(timer_.get(), &times, sizeof times) == sizeof times) Look();
  });
}

void SocketWatch::Look() {
  if (stopped_) return;
  std::string problem;
  for (const Socket& socket : sockets_) {
    if (socket.is_there()) continue;
    const absl::Status renewed = socket.renew();
    if (renewed.ok()) {
      Log(LogLevel::kWarn, "socket made anew",
          {{"socket", socket.path},
           {"why", "its file was removed or replaced, and nobody else served there"},
           {"sessions", "go on"}});
      continue;
    }
    problem =
        absl::StrCat("new clients do not reach this epd: the file of its socket '", socket.path,
                     "' was removed or replaced, and cannot be made anew: ", renewed.message());
    break;
  }
  if (std::exchange(problem_, problem) == problem) return;
  if (!problem.empty()) {
    Log(LogLevel::kError, "socket lost", {{"why", problem}});
  } else {
    Log(LogLevel::kInfo, "sockets are there again");
  }
  tell_(problem);
}

}  // namespace epd
