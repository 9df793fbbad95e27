#include "absl/strings/str_cat.h"
#include "client/cli/commands/command.h"

namespace epd::cli {

Report RunClose(const CommandContext& context) {
  epd::v1::CloseGroupRequest request;
  request.set_request_id(NewRequestId());
  request.set_name(context.options.group);
  request.set_epoch(context.options.epoch);
  if (context.options.tenant.has_value()) request.set_tenant(*context.options.tenant);
  Report report = CallNode(context, "CloseGroup", &epd::v1::Node::Stub::CloseGroup, request);
  if (report.message == nullptr) return report;
  report.table = absl::StrCat("group ", context.options.group, " is closed\n");
  return report;
}

}  // namespace epd::cli
