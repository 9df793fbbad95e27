#include "client/cli/commands/command.h"
#include "client/cli/printers/tables.h"

namespace epd::cli {

Report RunSessions(const CommandContext& context) {
  Report report = CallNode(context, "ListSessions", &epd::v1::Node::Stub::ListSessions,
                           epd::v1::ListSessionsRequest());
  if (report.message == nullptr) return report;
  report.table = SessionsTable(static_cast<const epd::v1::ListSessionsResponse&>(*report.message));
  return report;
}

}  // namespace epd::cli
