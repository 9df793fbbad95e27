#include "client/cli/commands/command.h"
#include "client/cli/printers/tables.h"

namespace epd::cli {

Report RunWhy(const CommandContext& context) {
  epd::v1::ExplainGroupRequest request;
  request.set_name(context.options.group);
  Report report = CallNode(context, "ExplainGroup", &epd::v1::Node::Stub::ExplainGroup, request);
  if (report.message == nullptr) return report;
  report.table = WhyText(static_cast<const epd::v1::ExplainGroupResponse&>(*report.message),
                         context.options.all_past);
  return report;
}

}  // namespace epd::cli
