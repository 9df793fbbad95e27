// What a command of epctl is: it asks the daemon and says what came back. How that is shown is the
// printers' affair.
#pragma once

#include <google/protobuf/message.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "client/cli/connection.h"
#include "client/cli/exit_code.h"
#include "client/cli/options.h"

namespace epd::cli {

struct Report {
  ExitCode code = ExitCode::kOk;
  std::unique_ptr<google::protobuf::Message> message;  // NULL: the command failed, see `error`.
  std::string table;                                   // `message` for people.
  std::string error;                                   // For people; may stand beside a message.
};

struct CommandContext {
  const Options& options;
  const SearchContext& search;
  Connection* connection = nullptr;  // NULL only for commands that work without a daemon.
  ConnectError connect_failure;      // Why there is no connection.
  const google::protobuf::Message* before = nullptr;  // The answer of the round before, of --watch.
};

Report RunHealth(const CommandContext& context);
Report RunDoctor(const CommandContext& context);
Report RunExplain(const CommandContext& context);
Report RunVersion(const CommandContext& context);
// Writes a file, and says what is in it and what is not.
Report RunSupportArchive(const CommandContext& context);
// Of the group that is named, else of GroupToExplain.
Report RunWhy(const CommandContext& context);
// `why` of a file that RunSupportArchive has written (--from). Needs no daemon.
Report RunWhyFromArchive(const CommandContext& context);
// Blocks for --seconds. What it prints is JSON with either --output.
Report RunTrace(const CommandContext& context);
// Blocks until the other program answers.
Report RunReplace(const CommandContext& context);

struct Command {
  std::string name;
  std::function<Report(const CommandContext&)> run;
  bool needs_daemon = true;
  const google::protobuf::Descriptor* output = nullptr;  // Of Report::message.
};

// The least that doctor waits for epd: a driver may take its time to start many GPUs.
inline constexpr absl::Duration kDoctorPatience = absl::Seconds(30);
// How long the program that is to take over in replace may take to say whether it can.
inline constexpr absl::Duration kProgramPatience = absl::Seconds(10);

// All commands. Each name is one of ParseOptions', perhaps with " --all-nodes".
const std::vector<Command>& Commands();

// JSON schemas of all commands' output and of a failed command's, by file name: "status.json", ...,
// "error.json".
std::map<std::string, std::string> OutputSchemas();

// ---- for the commands' own use ----

// Which group somebody means who asks why and names none: the one that has waited longest for a rank; else the first that is not READY; else
// the only one. Empty: nobody can tell.
std::string GroupToExplain(const epd::v1::ListGroupsResponse& groups);

// Those that are one call of the Node service and its answer as a table.
std::vector<Command> NodeCommands();

// Calls `method` of the Node service with --timeout (`timeout` if given) and returns a report with
// the response and code kOk, or with the failure.
template <typename Request, typename Response>
Report CallNode(const CommandContext& context, const std::string& name,
                grpc::Status (epd::v1::Node::Stub::*method)(grpc::ClientContext*, const Request&,
                                                            Response*),
                const Request& request) {
  return CallNodeFor(context, name, method, request, context.options.timeout);
}

template <typename Request, typename Response>
Report CallNodeFor(const CommandContext& context, const std::string& name,
                   grpc::Status (epd::v1::Node::Stub::*method)(grpc::ClientContext*, const Request&,
                                                               Response*),
                   const Request& request, absl::Duration timeout) {
  grpc::ClientContext call;
  PrepareCall(call, timeout);
  auto response = std::make_unique<Response>();
  const grpc::Status status =
      (context.connection->node.get()->*method)(&call, request, response.get());
  if (!status.ok()) {
    return {ExitCodeOf(status), nullptr, "",
            DescribeFailure(*context.connection, name, status, timeout)};
  }
  return {ExitCode::kOk, std::move(response), "", ""};
}

// 0, 1 or 7: what the daemon's own judgement means for scripts.
ExitCode ExitCodeOf(epd::v1::Health health);

}  // namespace epd::cli
