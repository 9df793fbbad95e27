// Starting a private daemon for this user, by exactly one of the processes that want one.
#pragma once

#include <chrono>
#include <string>

#include "client/c/status.h"

namespace epd::client {

using Clock = std::chrono::steady_clock;

struct PrivateDaemon {
  std::string folder;       // Made 0700 if it is not there; must belong to this user.
  std::string socket_path;  // In `folder`.
  std::string daemon_path;  // Empty: EPD_PROGRAM, else the one installed with this library.
  Clock::time_point deadline;
};

// Starts an epd that listens on socket_path and ends by itself 5 s after its last session, unless
// somebody listens there already; returns when it listens. One line on stderr says so. The daemon
// is no child of this process: it has its own session, none of our descriptors, and its output goes
// to <folder>/epd.log.
//   PERMISSION_DENIED    the folder belongs to somebody else or is open to others
//   FAILED_PRECONDITION  no epd binary was found that belongs to this user or root and that others cannot
//                        write to; the text says where it was looked for, and what was found there
//   UNAVAILABLE          it did not come up; the text ends with the last lines of its log
//   INVALID_ARGUMENT     the socket path is too long
Status StartPrivateDaemon(const PrivateDaemon& daemon);

// The epd binary that would be started; empty if there is none, and then `tried` says where it was
// looked for.
std::string FindDaemon(const std::string& given, std::string* tried);

}  // namespace epd::client
