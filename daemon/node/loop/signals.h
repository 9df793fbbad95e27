// SIGTERM and SIGINT as events of the loop.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "daemon/core/unique_fd.h"
#include "daemon/node/loop/event_loop.h"

namespace epd {

// Blocks SIGTERM and SIGINT in the calling thread and all that it starts, and ignores the signals
// that would end epd for somebody else's doing (SIGPIPE, SIGXFSZ, SIGHUP). Before the first thread.
void BlockSignals();

// Turns blocked SIGTERM and SIGINT into calls of a handler.
class SignalWatch {
 public:
  // Errors as EventLoop::Add.
  absl::Status Start(EventLoop& loop, std::function<void(int signal)> handler);

 private:
  UniqueFd fd_;
};

}  // namespace epd
