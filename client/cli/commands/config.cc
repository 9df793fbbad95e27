#include "client/cli/commands/command.h"
#include "client/cli/printers/tables.h"

namespace epd::cli {

Report RunConfig(const CommandContext& context) {
  Report report =
      CallNode(context, "GetConfig", &epd::v1::Node::Stub::GetConfig, epd::v1::GetConfigRequest());
  if (report.message == nullptr) return report;
  report.table = ConfigTable(static_cast<const epd::v1::GetConfigResponse&>(*report.message));
  return report;
}

}  // namespace epd::cli
