#include "client/cli/commands/command.h"
#include "client/cli/printers/tables.h"

namespace epd::cli {

Report RunGroups(const CommandContext& context) {
  epd::v1::ListGroupsRequest request;
  request.set_name(context.options.group);
  Report report = CallNode(context, "ListGroups", &epd::v1::Node::Stub::ListGroups, request);
  if (report.message == nullptr) return report;
  const auto& response = static_cast<const epd::v1::ListGroupsResponse&>(*report.message);
  report.table = context.options.group.empty() ? GroupsTable(response) : GroupDetails(response);
  return report;
}

}  // namespace epd::cli
