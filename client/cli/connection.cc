#include "client/cli/connection.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/security/credentials.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/human.h"
#include "client/cli/version.h"
#include "proto/epd/v1/key_text.h"

namespace epd::cli {
namespace {

grpc::ChannelArguments Arguments() {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);         // A big node's answer is not an attack.
  arguments.SetInt("grpc.enable_http_proxy", 0);  // A proxy is not the node that was asked for.
  // --watch connects anew each time; it must not wait out the last failure.
  arguments.SetInt("grpc.use_local_subchannel_pool", 1);
  return arguments;
}

ConnectResult Connected(const std::string& target, std::shared_ptr<grpc::Channel> channel) {
  auto connection = std::make_unique<Connection>();
  connection->target = target;
  connection->channel = std::move(channel);
  connection->node = epd::v1::Node::NewStub(connection->channel);
  connection->health = grpc::health::v1::Health::NewStub(connection->channel);
  return {std::move(connection), {}};
}

ConnectResult Failed(ExitCode code, std::string error) {
  return {nullptr, {code, std::move(error)}};
}

// "": it can be used.
std::string ReadFile(const char* option, const std::string& path, std::string& content) {
  std::ifstream file(path);
  if (!file) return absl::StrCat(option, ": cannot read '", path, "'");
  content = {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return "";
}

// "": nobody but its owner, this user or root, and perhaps root's group, may read or write it.
std::string WhyNotPrivate(const std::string& path) {
  struct stat facts {};
  if (stat(path.c_str(), &facts) != 0) return "";  // What reads it says so.
  const bool owned = facts.st_uid == geteuid() || facts.st_uid == 0;
  if (owned && (facts.st_mode & (facts.st_uid == 0 ? 027 : 077)) == 0) return "";
  return absl::StrFormat(
      "--tls-key: '%s' is of uid %d with mode %04o, expected yours or root's with mode 0600", path,
      facts.st_uid, facts.st_mode & 07777);
}

ConnectResult ConnectTcp(const Options& options) {
  const std::string uri = absl::StrCat("dns:///", options.address);
  if (options.tls_ca.empty() && options.tls_cert.empty() && options.tls_key.empty()) {
    return Connected(options.address, grpc::CreateCustomChannel(
                                          uri, grpc::InsecureChannelCredentials(), Arguments()));
  }
  grpc::SslCredentialsOptions tls;
  std::string problem = ReadFile("--tls-ca", options.tls_ca, tls.pem_root_certs);
  if (problem.empty()) problem = ReadFile("--tls-cert", options.tls_cert, tls.pem_cert_chain);
  if (problem.empty()) problem = WhyNotPrivate(options.tls_key);
  if (problem.empty()) problem = ReadFile("--tls-key", options.tls_key, tls.pem_private_key);
  if (problem.empty() && key_text::IsEncrypted(tls.pem_private_key))
    problem = key_text::Refusal("--tls-key", options.tls_key);
  if (!problem.empty()) return Failed(ExitCode::kUsage, problem);
  return Connected(options.address,
                   grpc::CreateCustomChannel(uri, grpc::SslCredentials(tls), Arguments()));
}

}  // namespace

ConnectResult Connect(const Options& options, const SearchContext& search) {
  if (!options.address.empty()) return ConnectTcp(options);
  std::string tried;
  bool denied = false;
  for (const SocketCandidate& candidate : FindCandidates(options.socket, search)) {
    const std::string path = GrpcPath(candidate.attach_path);
    Probe probe = ProbeSocket(path);
    if (probe.result == ProbeResult::kListening) {
      return Connected(
          path, grpc::CreateCustomInsecureChannelFromFd("epd", probe.fd.Release(), Arguments()));
    }
    if (probe.result == ProbeResult::kStranger) return Failed(ExitCode::kDenied, probe.text);
    absl::StrAppend(&tried, "  ", path, " (", candidate.origin,
                    "): ", candidate.problem.empty() ? probe.text : candidate.problem, "\n");
    // As the client library: a daemon that refuses this user is not passed over for another one.
    denied = probe.result == ProbeResult::kDenied && candidate.problem.empty();
    if (denied) break;
  }
  if (denied) {
    return Failed(ExitCode::kDenied,
                  absl::StrCat("the daemon's socket is closed to this user:\n", tried,
                               "Run epctl as the user who started epd, or as root."));
  }
  return Failed(ExitCode::kCannotConnect,
                absl::StrCat("no epd found:\n", tried,
                             "Start one (epd, or systemctl start epd), or name its socket with "
                             "--socket or EPD_SOCKET. 'epctl doctor' checks this machine."));
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
      if (!status.error_message().empty()) break;  // The call is known, and says what it cannot do.
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
