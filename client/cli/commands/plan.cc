#include "client/cli/commands/command.h"
#include "client/cli/printers/tables.h"

namespace epd::cli {

Report RunPlan(const CommandContext& context) {
  epd::v1::PlanMemoryRequest request;
  *request.mutable_spec() = SpecOf(context.options);
  request.set_element_bytes(context.options.spec.element_bytes);
  Report report = CallNode(context, "PlanMemory", &epd::v1::Node::Stub::PlanMemory, request);
  if (report.message == nullptr) return report;
  report.table = PlanTable(static_cast<const epd::v1::PlanMemoryResponse&>(*report.message));
  return report;
}

}  // namespace epd::cli
