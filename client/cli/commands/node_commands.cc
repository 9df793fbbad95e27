#include <algorithm>
#include <random>
#include <type_traits>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/commands/command.h"
#include "client/cli/printers/tables.h"
#include "proto/epd/v1/limits.h"

namespace epd::cli {
namespace {

using epd::v1::Node;

// What a command asks of its options and answers: `fill` and `code` may be empty; `patience`: how long the daemon itself may
// wait before it answers, beside --timeout.
template <typename Request, typename Response>
struct Call {
  std::function<std::string(const Response&, const Options&)> table;
  std::function<void(const Options&, Request&)> fill = {};
  std::function<ExitCode(const Response&)> code = {};
  std::function<absl::Duration(const Options&)> patience = {};
};

template <typename Request, typename Response>
Command Make(const char* command, const char* name,
             grpc::Status (Node::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
             std::type_identity_t<Call<Request, Response>> call) {
  const auto run = [=](const CommandContext& context) {
    const Options& options = context.options;
    Request request;
    if (call.fill) call.fill(options, request);
    const absl::Duration patience = call.patience ? call.patience(options) : absl::ZeroDuration();
    Report report = CallNodeFor(context, name, method, request, options.timeout + patience);
    if (report.message == nullptr) return report;
    const auto& response = static_cast<const Response&>(*report.message);
    if (call.code) report.code = call.code(response);
    report.table = call.table(response, options);
    return report;
  };
  return {command, run, true, Response::descriptor()};
}

// A table that shows the answer whatever the options are.
template <typename Response>
auto Shown(std::string (*table)(const Response&)) {
  return [table](const Response& response, const Options&) { return table(response); };
}

// A new random id: repeating a request with the same one is harmless.
std::string NewRequestId() {
  std::random_device random;
  return absl::StrFormat("epctl-%08x%08x%08x%08x", random(), random(), random(), random());
}

template <typename Request>
void NameGroup(const Options& options, Request& request) {
  request.set_name(options.group);
}

// What `drain` and `close` end.
template <typename Request>
void NameTenant(const Options& options, Request& request) {
  request.set_request_id(NewRequestId());
  request.set_name(options.group);
  request.set_epoch(options.epoch);
  if (options.tenant.has_value()) request.set_tenant(*options.tenant);
}

void FillDrain(const Options& options, epd::v1::DrainGroupRequest& request) {
  NameTenant(options, request);
  const int64_t nanos = absl::ToInt64Nanoseconds(options.drain_deadline);
  request.mutable_deadline()->set_seconds(nanos / 1'000'000'000);
  request.mutable_deadline()->set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
}

epd::v1::GroupSpec MakeSpec(const Options& options) {
  epd::v1::GroupSpec spec = options.spec;
  spec.set_name(options.group);
  return spec;
}

void FillCreate(const Options& options, epd::v1::CreateGroupRequest& request) {
  request.set_request_id(NewRequestId());
  *request.mutable_spec() = MakeSpec(options);
}

void FillPlan(const Options& options, epd::v1::PlanMemoryRequest& request) {
  *request.mutable_spec() = MakeSpec(options);
  request.set_element_bytes(options.element_bytes);
}

std::string CreatedTable(const epd::v1::CreateGroupResponse& created) {
  epd::v1::ListGroupsResponse shown;
  *shown.add_groups() = created.group();
  return GroupsTable(shown);
}

ExitCode WorstOf(const epd::v1::ListNodesResponse& nodes) {
  epd::v1::Health worst = epd::v1::HEALTH_OK;
  for (const auto& node : nodes.nodes()) {
    worst = std::max(worst, node.has_status() ? node.status().health() : epd::v1::HEALTH_DEGRADED);
  }
  return ExitCodeOf(worst);
}

ExitCode VersionsFit(const epd::v1::ListNodesResponse& nodes) {
  const bool fit = absl::c_all_of(nodes.nodes(), [](const auto& node) {
    return !node.has_status() ||
           (node.status().max_protocol_version() >= limits::kMinProtocolVersion &&
            node.status().min_protocol_version() <= limits::kProtocolVersion);
  });
  return fit ? ExitCode::kOk : ExitCode::kVersion;
}

Report RunTop(const CommandContext& context) {
  using Figures = epd::v1::GetFiguresResponse;
  Report report =
      CallNode(context, "GetFigures", &Node::Stub::GetFigures, epd::v1::GetFiguresRequest());
  if (report.message == nullptr) return report;
  const auto& now = static_cast<const Figures&>(*report.message);
  report.table = TopText(now, static_cast<const Figures*>(context.before), context.options.order);
  return report;
}

}  // namespace

std::vector<Command> NodeCommands() {
  using S = Node::Stub;
  return {
      Make("status", "GetStatus", &S::GetStatus,
           {.table = Shown(StatusTable),
            .code = [](const auto& status) { return ExitCodeOf(status.health()); }}),
      {"top", RunTop, true, epd::v1::GetFiguresResponse::descriptor()},
      Make("groups", "ListGroups", &S::ListGroups,
           {.table =
                [](const auto& groups, const Options& options) {
                  return options.group.empty() ? GroupsTable(groups) : GroupDetails(groups);
                },
            .fill = NameGroup<epd::v1::ListGroupsRequest>}),
      Make("sessions", "ListSessions", &S::ListSessions, {.table = Shown(SessionsTable)}),
      Make("ranks", "ListRanks", &S::ListRanks,
           {.table = Shown(RanksTable),
            .fill = [](const Options& options,
                       auto& request) { request.set_group(options.group); }}),
      Make("memory", "GetMemory", &S::GetMemory, {.table = Shown(MemoryTable)}),
      Make("drain", "DrainGroup", &S::DrainGroup,
           {.table = Shown(DrainTable),
            .fill = FillDrain,
            .patience = [](const Options& options) { return options.drain_deadline; }}),
      Make("close", "CloseGroup", &S::CloseGroup,
           {.table =
                [](const auto&, const Options& options) {
                  return absl::StrCat("group ", options.group, " is closed\n");
                },
            .fill = NameTenant<epd::v1::CloseGroupRequest>}),
      Make("create", "CreateGroup", &S::CreateGroup,
           {.table = Shown(CreatedTable), .fill = FillCreate}),
      Make("plan", "PlanMemory", &S::PlanMemory,
           {.table = Shown(PlanTable),
            .fill = FillPlan,
            .code =
                [](const auto& plan) {
                  return plan.fits() || plan.verdict().empty() ? ExitCode::kOk
                                                               : ExitCode::kUnhealthy;
                }}),
      Make("config", "GetConfig", &S::GetConfig, {.table = Shown(ConfigTable)}),
      {"why", RunWhy, true, epd::v1::ExplainGroupResponse::descriptor()},
      Make("status --all-nodes", "ListNodes", &S::ListNodes,
           {.table = Shown(NodesTable), .code = WorstOf}),
      Make("version --all-nodes", "ListNodes", &S::ListNodes,
           {.table = Shown(NodeVersionsTable), .code = VersionsFit}),
  };
}

}  // namespace epd::cli
