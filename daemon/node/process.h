// What epd asks of its own process at the start.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "daemon/core/unique_fd.h"
#include "daemon/node/loop/event_loop.h"

namespace epd {

// Standard descriptors are open (else the first sockets would take their numbers), files that epd
// makes are its own (umask 077), and as many descriptors are allowed as the hard limit permits.
// Call it before the first thread starts.
void PrepareProcess();

// Tells systemd (NOTIFY_SOCKET) something such as "READY=1". Does nothing without that variable.
void NotifySupervisor(const std::string& state);

// Tells systemd's watchdog (WATCHDOG_USEC) that the loop turns, twice as often as it asks. Does nothing
// where nobody asks.
class SupervisorWatchdog {
 public:
  // Errors as EventLoop::Add.
  absl::Status Start(EventLoop& loop);

 private:
  UniqueFd timer_;
};

// gethostname(), or "localhost".
std::string HostName();

}  // namespace epd
