// SIGTERM, SIGINT and SIGHUP as events of the loop.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "daemon/core/unique_fd.h"
#include "daemon/node/loop/event_loop.h"

namespace epd {

// Blocks SIGTERM, SIGINT and SIGHUP in the calling thread and all that it starts, and ignores the
// signals that would end epd for somebody else's doing (SIGPIPE, SIGXFSZ) or that mean nothing to it
// (SIGUSR1, and SIGUSR2 until it asks for stacks, see proto/stacks). Before the first thread.
void BlockSignals();

// Turns the blocked signals into calls of a handler.
class SignalWatch {
 public:
  // Errors as EventLoop::Add.
  absl::Status Start(EventLoop& loop, std::function<void(int signal)> handler);

 private:
  UniqueFd fd_;
};

}  // namespace epd
