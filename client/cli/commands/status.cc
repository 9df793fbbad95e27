#include "client/cli/commands/command.h"
#include "client/cli/printers/tables.h"

namespace epd::cli {

Report RunStatus(const CommandContext& context) {
  Report report =
      CallNode(context, "GetStatus", &epd::v1::Node::Stub::GetStatus, epd::v1::GetStatusRequest());
  if (report.message == nullptr) return report;
  const auto& status = static_cast<const epd::v1::GetStatusResponse&>(*report.message);
  report.code = ExitCodeOf(status.health());
  report.table = StatusTable(status);
  return report;
}

}  // namespace epd::cli
