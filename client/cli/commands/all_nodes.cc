// status and version of every node of the cluster.
#include <algorithm>

#include "client/cli/commands/command.h"
#include "client/cli/printers/tables.h"
#include "client/cli/version.h"
#include "proto/epd/v1/limits.h"

namespace epd::cli {
namespace {

Report Ask(const CommandContext& context) {
  return CallNode(context, "ListNodes", &epd::v1::Node::Stub::ListNodes,
                  epd::v1::ListNodesRequest());
}

const epd::v1::ListNodesResponse& NodesIn(const Report& report) {
  return static_cast<const epd::v1::ListNodesResponse&>(*report.message);
}

}  // namespace

Report RunStatusOfAllNodes(const CommandContext& context) {
  Report report = Ask(context);
  if (report.message == nullptr) return report;
  epd::v1::Health worst = epd::v1::HEALTH_OK;
  for (const auto& node : NodesIn(report).nodes()) {
    worst = std::max(worst, node.has_status() ? node.status().health() : epd::v1::HEALTH_DEGRADED);
  }
  report.code = ExitCodeOf(worst);
  report.table = NodesTable(NodesIn(report));
  return report;
}

Report RunVersionOfAllNodes(const CommandContext& context) {
  Report report = Ask(context);
  if (report.message == nullptr) return report;
  for (const auto& node : NodesIn(report).nodes()) {
    const bool fits =
        !node.has_status() || (node.status().max_protocol_version() >= kMinProtocolVersion &&
                               node.status().min_protocol_version() <= limits::kProtocolVersion);
    if (!fits) report.code = ExitCode::kVersion;
  }
  report.table = NodeVersionsTable(NodesIn(report));
  return report;
}

}  // namespace epd::cli
