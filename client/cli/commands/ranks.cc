#include "client/cli/commands/command.h"
#include "client/cli/printers/tables.h"

namespace epd::cli {

Report RunRanks(const CommandContext& context) {
  epd::v1::ListRanksRequest request;
  request.set_group(context.options.group);
  Report report = CallNode(context, "ListRanks", &epd::v1::Node::Stub::ListRanks, request);
  if (report.message == nullptr) return report;
  report.table = RanksTable(static_cast<const epd::v1::ListRanksResponse&>(*report.message));
  return report;
}

}  // namespace epd::cli
