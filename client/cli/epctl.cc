#include "client/cli/epctl.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "client/cli/colours.h"
#include "client/cli/commands/command.h"
#include "client/cli/human.h"
#include "client/cli/json.h"
#include "client/cli/next_commands.h"
#include "client/cli/options.h"
#include "client/cli/progress.h"
#include "client/cli/report.pb.h"

namespace epd::cli {
namespace {

constexpr char kClearScreen[] = "\033[H\033[2J";

// Connects anew each time, so that --watch survives a restart of the daemon.
Report RunOnce(const Command& command, const Options& options, const SearchContext& search,
               const google::protobuf::Message* before = nullptr) {
  if (!options.from.empty()) return RunWhyFromArchive({options, search, nullptr, {}, before});
  ConnectResult connected = Connect(options, search);
  if (connected.connection == nullptr && command.needs_daemon) {
    return {connected.failure.code, nullptr, "", connected.failure.error};
  }
  return command.run({options, search, connected.connection.get(), connected.failure, before});
}

// Writes all of it, now. False: it cannot be written, which is said.
bool Put(const std::string& text, const Terminal& terminal) {
  errno = 0;
  terminal.out << text;
  terminal.out.flush();
  if (terminal.out.good()) return true;
  terminal.err << "epctl: cannot write to standard output: "
               << (errno == 0 ? "it takes no more" : std::strerror(errno)) << std::endl;
  return false;
}

// False: it cannot be written.
bool Print(const Report& report, const Options& options, const Terminal& terminal) {
  std::string text;
  if (options.output == Output::kJson) {
    const bool one_line = options.watch.has_value();
    if (report.message != nullptr) {
      text = ToJson(*report.message, one_line);
    } else {
      ErrorReport error;
      error.set_exit_code(static_cast<int>(report.code));
      error.set_error(report.error);
      text = ToJson(error, one_line);
    }
  } else {
    text = terminal.colours ? Coloured(report.table) : report.table;
  }
  const bool written = Put(text, terminal);
  if (!report.error.empty()) terminal.err << "epctl: " << report.error << std::endl;
  return written;
}

// Operations of the group that is drained, asked in a call of its own; nothing while nobody answers.
std::optional<uint64_t> CountOpen(const Options& options, const SearchContext& search) {
  const ConnectResult connected = Connect(options, search);
  if (connected.connection == nullptr) return std::nullopt;
  grpc::ClientContext call;
  PrepareCall(call, absl::Seconds(1));
  epd::v1::ListGroupsRequest request;
  request.set_name(options.group);
  epd::v1::ListGroupsResponse response;
  if (!connected.connection->node->ListGroups(&call, request, &response).ok()) return std::nullopt;
  uint64_t count = 0;
  for (const auto& group : response.groups()) {
    const bool meant = !options.tenant.has_value() || *options.tenant == group.spec().tenant();
    if (meant) count += group.num_open_operations();
  }
  return count;
}

// How long a call may take.
absl::Duration LimitOf(const Options& options) {
  if (options.command == "drain") return options.timeout + options.drain_deadline;
  if (options.command == "replace") return 2 * options.timeout + kProgramPatience;
  return options.command == "doctor" ? std::max(options.timeout, kDoctorPatience) : options.timeout;
}

// With a line that tells how far it is, on a terminal.
Report RunVisibly(const Command& command, const Options& options, const SearchContext& search,
                  const Terminal& terminal) {
  if (terminal.progress == nullptr) return RunOnce(command, options, search);
  const bool drains = options.command == "drain";
  const auto count_open = [&] { return CountOpen(options, search); };
  return WithProgress(
      options.group.empty() ? options.command : absl::StrCat(options.command, " ", options.group),
      LimitOf(options), [&] { return RunOnce(command, options, search); },
      drains ? std::function<std::optional<uint64_t>()>(count_open) : nullptr, *terminal.progress);
}

// Waits for the next round; false: the user has had enough.
bool Pause(Options& options, const Terminal& terminal) {
  if (options.command != "top" || !terminal.wait_for_key) {
    terminal.sleep(*options.watch);
    return true;
  }
  const char key = terminal.wait_for_key(*options.watch);
  if (key != 0) options.order = key;
  return key != 'q';
}

ExitCode Watch(const Command& command, Options options, const SearchContext& search,
               const Terminal& terminal) {
  Report report;
  for (uint64_t round = 0; options.watch_count == 0 || round < options.watch_count; ++round) {
    if (round > 0 && !Pause(options, terminal)) break;
    report = RunOnce(command, options, search, report.message.get());
    if (options.output == Output::kTable) {
      const std::string time =
          absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::Now(), absl::LocalTimeZone());
      const char* const before = terminal.is_tty ? kClearScreen : round > 0 ? "\n" : "";
      const std::string head = absl::StrCat(before, time, "  epctl ", options.command, "  (every ",
                                            HumanDuration(*options.watch), ")\n");
      if (!Put(head, terminal)) return ExitCode::kUnhealthy;
    }
    if (!Print(report, options, terminal)) return ExitCode::kUnhealthy;
  }
  return report.code;
}

}  // namespace

ExitCode RunEpctl(const std::vector<std::string>& args, const SearchContext& search,
                  const Terminal& terminal) {
  const ParsedOptions parsed = ParseOptions(args);
  if (!parsed.options.has_value()) {
    if (parsed.is_help) return Put(parsed.text, terminal) ? ExitCode::kOk : ExitCode::kUnhealthy;
    terminal.err << parsed.text;
    return ExitCode::kUsage;
  }
  const Options& options = *parsed.options;
  const auto command = absl::c_find_if(
      Commands(), [&](const Command& each) { return each.name == options.command; });
  if (options.watch.has_value()) return Watch(*command, options, search, terminal);
  const Report report = RunVisibly(*command, options, search, terminal);
  bool written = Print(report, options, terminal);
  if (written && options.overview && options.output == Output::kTable)
    written = Put(NextCommands(report), terminal);
  return written ? report.code : ExitCode::kUnhealthy;
}

}  // namespace epd::cli
