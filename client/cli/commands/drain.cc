#include "absl/strings/str_cat.h"
#include "client/cli/commands/command.h"
#include "client/cli/printers/tables.h"

namespace epd::cli {

Report RunDrain(const CommandContext& context) {
  const Options& options = context.options;
  epd::v1::DrainGroupRequest request;
  request.set_request_id(NewRequestId());
  request.set_name(options.group);
  request.set_epoch(options.epoch);
  if (options.tenant.has_value()) request.set_tenant(*options.tenant);
  const int64_t nanos = absl::ToInt64Nanoseconds(options.drain_deadline);
  request.mutable_deadline()->set_seconds(nanos / 1'000'000'000);
  request.mutable_deadline()->set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
  // The daemon answers when the group has drained, so the call itself may take longer than
  // --timeout.
  Report report = CallNodeFor(context, "DrainGroup", &epd::v1::Node::Stub::DrainGroup, request,
                              options.drain_deadline + options.timeout);
  if (report.message == nullptr) return report;
  report.table = DrainTable(static_cast<const epd::v1::DrainGroupResponse&>(*report.message));
  return report;
}

}  // namespace epd::cli
