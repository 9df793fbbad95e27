#include "client/cli/commands/command.h"
#include "client/cli/printers/tables.h"

namespace epd::cli {

Report RunCreate(const CommandContext& context) {
  epd::v1::CreateGroupRequest request;
  request.set_request_id(NewRequestId());
  *request.mutable_spec() = SpecOf(context.options);
  Report report = CallNode(context, "CreateGroup", &epd::v1::Node::Stub::CreateGroup, request);
  if (report.message == nullptr) return report;
  epd::v1::ListGroupsResponse shown;
  *shown.add_groups() = static_cast<const epd::v1::CreateGroupResponse&>(*report.message).group();
  report.table = GroupsTable(shown);
  return report;
}

}  // namespace epd::cli
