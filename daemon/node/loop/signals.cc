#include "daemon/node/loop/signals.h"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace epd {
namespace {

sigset_t Watched() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGHUP);
  return set;
}

}  // namespace

void BlockSignals() {
  sigset_t set = Watched();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // A file-size limit is an error of fallocate, not the end.
  signal(SIGUSR1, SIG_IGN);
  signal(SIGUSR2, SIG_IGN);
}

absl::Status SignalWatch::Start(EventLoop& loop, std::function<void(int)> handler) {
  const sigset_t set = Watched();
  fd_.reset(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_.valid())
    return absl::ResourceExhaustedError(absl::StrCat("signalfd: ", std::strerror(errno)));
  return loop.Add(fd_.get(), EPOLLIN, [fd = fd_.get(), handler = std::move(handler)](uint32_t) {
    signalfd_siginfo info;
    while (read(fd, &info, sizeof info) == sizeof info) handler(static_cast<int>(info.ssi_signo));
  });
}

}  // namespace epd
