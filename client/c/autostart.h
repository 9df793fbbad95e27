// Starting a private daemon for this user, by exactly one of the processes that want one.
#pragma once

#include <chrono>
#include <string>

#include "client/c/running_deadline.h"
#include "client/c/status.h"
#include "proto/epd/v1/private_folder.h"

namespace epd::client {

using Clock = std::chrono::steady_clock;

struct PrivateDaemon {
  PrivateFolder folder;
  std::string daemon_path;  // Empty: EPD_PROGRAM, else the one installed with this library.
  RunningDeadline deadline;
};

// Starts an epd that listens in `folder`, which is made if it is not there, and ends by itself 5 s after its last session, unless
// somebody listens there already; returns when it listens. One line on stderr says so. The daemon
// is no child of this process: it has its own session, none of our descriptors, and its output goes
// to <folder>/epd.log.
//   as PrivateFolder::Make
//   FAILED_PRECONDITION  no epd binary was found that belongs to this user or root and that others cannot
//                        write to; the text says where it was looked for, and what was found there. Or it was
//                        started, and ended: the text has the last line that it wrote
//   UNAVAILABLE          it did not come up in time; likewise
// Its deadline is later afterwards by what this process did not run.
Status StartPrivateDaemon(PrivateDaemon& daemon);

// What a client says of a folder that cannot be used; `looked`: where else an epd was looked for.
Status OfFolder(const PrivateFolder::Problem& problem, const std::string& looked = "");

// The epd binary that would be started; empty if there is none, and then `tried` says where it was
// looked for.
std::string FindDaemon(const std::string& given, std::string* tried);

}  // namespace epd::client
