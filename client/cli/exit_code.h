// Exit codes of epctl. Scripts rely on them; they only ever grow.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

namespace epd::cli {

enum class ExitCode {
  kOk = 0,
  kUnhealthy =
      1,  // The node or group does not serve, the daemon refused or failed, or the answer cannot be written.
  kUsage = 2,          // Wrong arguments, or a name that does not exist.
  kCannotConnect = 3,  // No daemon, or it is starting or stopping.
  kVersion = 4,        // This epctl and the daemon do not speak a common version.
  kDenied = 5,         // The daemon or its socket belongs to another user.
  kDeadline = 6,       // No answer, or a drain that cut operations off.
  kDegraded = 7,       // It serves, but something is lost or was found wrong.
};

// The code that a failed call means.
ExitCode ExitCodeOf(const grpc::Status& status);

// One line per code, for --help.
std::string ExitCodeHelp();

}  // namespace epd::cli
