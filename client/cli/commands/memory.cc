#include "client/cli/commands/command.h"
#include "client/cli/printers/tables.h"

namespace epd::cli {

Report RunMemory(const CommandContext& context) {
  Report report =
      CallNode(context, "GetMemory", &epd::v1::Node::Stub::GetMemory, epd::v1::GetMemoryRequest());
  if (report.message == nullptr) return report;
  report.table = MemoryTable(static_cast<const epd::v1::GetMemoryResponse&>(*report.message));
  return report;
}

}  // namespace epd::cli
