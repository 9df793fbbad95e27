#include "client/cli/connection.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include "absl/strings/str_cat.h"
#include "client/cli/human.h"
#include "client/cli/version.h"

namespace epd::cli {
namespace {

std::unique_ptr<Connection> Open(const std::string& target, const std::string& uri) {
  auto connection = std::make_unique<Connection>();
  connection->target = target;
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);         // A big node's answer is not an attack.
  arguments.SetInt("grpc.enable_http_proxy", 0);  // A proxy is not the node that was asked for.
  // --watch connects anew each time; it must not wait out the last failure.
  arguments.SetInt("grpc.use_local_subchannel_pool", 1);
  connection->channel =
      grpc::CreateCustomChannel(uri, grpc::InsecureChannelCredentials(), arguments);
  connection->node = epd::v1::Node::NewStub(connection->channel);
  connection->health = grpc::health::v1::Health::NewStub(connection->channel);
  return connection;
}

}  // namespace

ConnectResult Connect(const Options& options, const SearchContext& search) {
  if (!options.address.empty()) {
    return {Open(options.address, absl::StrCat("dns:///", options.address)), {}};
  }
  std::string tried;
  bool denied = false;
  for (const SocketCandidate& candidate : FindCandidates(options.socket, search)) {
    const std::string path = GrpcPath(candidate.attach_path);
    const Probe probe = ProbeSocket(path);
    if (probe.result == ProbeResult::kListening)
      return {Open(path, absl::StrCat("unix:", path)), {}};
    absl::StrAppend(&tried, "  ", path, " (", candidate.origin, "): ", probe.text, "\n");
    // As the client library: a daemon that refuses this user is not passed over for another one.
    denied = probe.result == ProbeResult::kDenied;
    if (denied) break;
  }
  if (denied) {
    return {
        nullptr,
        {ExitCode::kDenied, absl::StrCat("the daemon's socket is closed to this user:\n", tried,
                                         "Run epctl as the user who started epd, or as root.")}};
  }
  return {
      nullptr,
      {ExitCode::kCannotConnect,
       absl::StrCat("no epd found:\n", tried,
                    "Start one (epd, or systemctl start epd), or name its socket with --socket or "
                    "EPD_SOCKET. 'epctl doctor' checks this machine.")}};
}

void PrepareCall(grpc::ClientContext& context, absl::Duration timeout) {
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  context.set_wait_for_ready(false);
}

std::string DescribeFailure(const Connection& connection, const std::string& call,
                            const grpc::Status& status, absl::Duration timeout) {
  std::string advice;
  switch (ExitCodeOf(status)) {
    case ExitCode::kCannotConnect:
      advice = "the daemon is starting, stopping or gone; try again, then see its log";
      break;
    case ExitCode::kVersion:
      advice = absl::StrCat("this epctl (", kVersion,
                            ") knows a call that the daemon lacks; upgrade epd");
      break;
    case ExitCode::kDenied:
      advice = "run epctl as the user who started epd, or as root";
      break;
    case ExitCode::kDeadline:
      // The daemon's own text is there only if it was the daemon that gave up.
      if (status.error_message() == "Deadline Exceeded") {
        return absl::StrCat(
            call, " of ", connection.target, ": no answer within ", HumanDuration(timeout),
            "; is the daemon stopped or the machine overloaded? (--timeout waits longer)");
      }
      break;
    default:
      break;
  }
  return absl::StrCat(call, " of ", connection.target, ": ", status.error_message(),
                      advice.empty() ? "" : "; ", advice);
}

}  // namespace epd::cli
