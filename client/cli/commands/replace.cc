// `epctl replace`: another program in the process of the node's epd.
#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/commands/command.h"

namespace epd::cli {
namespace {

using epd::v1::GetStatusResponse;
using epd::v1::ReplaceResponse;

constexpr std::chrono::milliseconds kLookAgain(20);

// How often the process's program was replaced, asked over a new connection; unset: nobody answers now.
std::optional<uint32_t> CountReplacements(const CommandContext& context) {
  const ConnectResult connected = Connect(context.options, context.search);
  if (connected.connection == nullptr) return std::nullopt;
  grpc::ClientContext call;
  PrepareCall(call, absl::Seconds(1));
  GetStatusResponse status;
  if (!connected.connection->node->GetStatus(&call, {}, &status).ok()) return std::nullopt;
  return status.num_replacements();
}

bool WaitFor(const CommandContext& context, uint32_t num_replacements) {
  const absl::Time deadline = absl::Now() + context.options.timeout;
  do {
    const std::optional<uint32_t> now = CountReplacements(context);
    if (now.has_value() && *now >= num_replacements) return true;
    std::this_thread::sleep_for(kLookAgain);
  } while (absl::Now() < deadline);
  return false;
}

}  // namespace

Report RunReplace(const CommandContext& context) {
  epd::v1::ReplaceRequest request;
  request.set_program(context.options.program);
  const std::optional<uint32_t> before = CountReplacements(context);
  Report report = CallNodeFor(context, "Replace", &epd::v1::Node::Stub::Replace, request,
                              context.options.timeout + kProgramPatience);
  if (report.message == nullptr) {
    // The answer may have been lost with the connection that it was on its way on.
    const bool lost = report.code == ExitCode::kCannotConnect && before.has_value();
    if (!lost || !WaitFor(context, *before + 1)) return report;
    auto replaced = std::make_unique<ReplaceResponse>();
    replaced->set_num_replacements(*before + 1);
    return {ExitCode::kOk, std::move(replaced), "epd is replaced\n", ""};
  }
  const auto& replaced = static_cast<const ReplaceResponse&>(*report.message);
  if (!WaitFor(context, replaced.num_replacements())) {
    return {ExitCode::kCannotConnect, nullptr, "",
            absl::StrCat("epd ", replaced.previous_version(), " has agreed to be replaced by ",
                         replaced.version(), ", and within ",
                         absl::FormatDuration(context.options.timeout),
                         " the other program does not answer; see epd's log\n")};
  }
  report.table = absl::StrCat("epd ", replaced.previous_version(), " is replaced by epd ",
                              replaced.version(), ", in the same process\n");
  return report;
}

}  // namespace epd::cli
