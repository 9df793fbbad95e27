#include "client/cli/exit_code.h"

namespace epd::cli {

ExitCode ExitCodeOf(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      return ExitCode::kOk;
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::NOT_FOUND:
    case grpc::StatusCode::ALREADY_EXISTS:
    case grpc::StatusCode::OUT_OF_RANGE:
      return ExitCode::kUsage;
    case grpc::StatusCode::UNAVAILABLE:
      return ExitCode::kCannotConnect;
    case grpc::StatusCode::UNIMPLEMENTED:
      return ExitCode::kVersion;
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::UNAUTHENTICATED:
      return ExitCode::kDenied;
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return ExitCode::kDeadline;
    default:
      return ExitCode::kUnhealthy;
  }
}

std::string ExitCodeHelp() {
  return "Exit codes:\n"
         "  0  ok\n"
         "  1  unhealthy: the node or group does not serve, the request failed, or its answer "
         "cannot be\n"
         "     written\n"
         "  2  usage: wrong arguments, or a name that does not exist\n"
         "  3  cannot connect: no daemon, or it is starting or stopping\n"
         "  4  version: epctl and the daemon have no common version\n"
         "  5  denied: the daemon or its socket belongs to another user\n"
         "  6  deadline: no answer in time, or a drain that cut operations off\n"
         "  7  degraded: it serves, but something is lost or was found wrong\n";
}

}  // namespace epd::cli
