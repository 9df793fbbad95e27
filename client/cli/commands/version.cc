#include "client/cli/version.h"

#include "absl/strings/str_cat.h"
#include "client/cli/commands/command.h"
#include "client/cli/printers/tables.h"
#include "client/cli/report.pb.h"
#include "proto/epd/v1/limits.h"

namespace epd::cli {
namespace {

std::string Range(uint32_t min, uint32_t max) {
  return min == max ? absl::StrCat(min) : absl::StrCat(min, " to ", max);
}

// Fills in what the daemon says, and the problem if the two do not fit.
ExitCode Compare(const epd::v1::GetStatusResponse& status, VersionReport& report) {
  report.set_connected(true);
  report.set_daemon(status.version());
  report.set_node(status.node());
  report.set_daemon_min_protocol_version(status.min_protocol_version());
  report.set_daemon_max_protocol_version(status.max_protocol_version());
  const bool daemon_is_older = status.max_protocol_version() < limits::kMinProtocolVersion;
  const bool daemon_is_newer = status.min_protocol_version() > limits::kProtocolVersion;
  if (!daemon_is_older && !daemon_is_newer) return ExitCode::kOk;
  report.set_problem(absl::StrCat(
      "no common protocol version: epctl ", kVersion, " speaks ",
      Range(limits::kMinProtocolVersion, limits::kProtocolVersion), ", epd ", status.version(),
      " speaks ", Range(status.min_protocol_version(), status.max_protocol_version()), "; upgrade ",
      daemon_is_older ? "epd" : "epctl and the clients of its release"));
  return ExitCode::kVersion;
}

}  // namespace

Report RunVersion(const CommandContext& context) {
  auto version = std::make_unique<VersionReport>();
  version->set_epctl(kVersion);
  version->set_min_protocol_version(limits::kMinProtocolVersion);
  version->set_max_protocol_version(limits::kProtocolVersion);
  ExitCode code = context.connect_failure.code;
  version->set_problem(context.connect_failure.error);
  if (context.connection != nullptr) {
    const Report asked = CallNode(context, "GetStatus", &epd::v1::Node::Stub::GetStatus,
                                  epd::v1::GetStatusRequest());
    code = asked.code;
    version->set_problem(asked.error);
    if (asked.message != nullptr) {
      code = Compare(static_cast<const epd::v1::GetStatusResponse&>(*asked.message), *version);
    }
  }
  std::string table = VersionTable(*version);
  std::string problem = version->problem();
  return {code, std::move(version), std::move(table), std::move(problem)};
}

}  // namespace epd::cli
