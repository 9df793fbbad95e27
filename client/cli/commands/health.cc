#include <set>

#include "absl/strings/str_cat.h"
#include "client/cli/commands/command.h"
#include "client/cli/printers/tables.h"
#include "client/cli/report.pb.h"

namespace epd::cli {
namespace {

using grpc::health::v1::HealthCheckResponse;

// Asks for one service and adds the answer.
grpc::Status Check(const CommandContext& context, const std::string& service,
                   HealthReport& report) {
  grpc::ClientContext call;
  PrepareCall(call, context.options.timeout);
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  HealthCheckResponse response;
  const grpc::Status status = context.connection->health->Check(&call, request, &response);
  if (status.ok()) {
    HealthReport::Service& added = *report.add_services();
    added.set_name(service);
    added.set_status(HealthCheckResponse::ServingStatus_Name(response.status()));
  }
  return status;
}

bool AllServe(const HealthReport& report) {
  for (const HealthReport::Service& service : report.services()) {
    if (service.status() != "SERVING") return false;
  }
  return true;
}

Report Failed(const CommandContext& context, const std::string& service,
              const grpc::Status& status) {
  return {ExitCodeOf(status), nullptr, "",
          DescribeFailure(*context.connection, absl::StrCat("health of '", service, "'"), status,
                          context.options.timeout)};
}

// One group, or the node apart from its groups: only whether it serves.
Report OneHealth(const CommandContext& context, const std::string& service,
                 const std::string& what) {
  auto health = std::make_unique<HealthReport>();
  const grpc::Status status = Check(context, service, *health);
  if (!status.ok()) return Failed(context, service, status);
  const bool serves = AllServe(*health);
  health->set_health(serves ? epd::v1::HEALTH_OK : epd::v1::HEALTH_UNHEALTHY);
  if (!serves) health->add_problems(absl::StrCat(what, " does not serve"));
  std::string table = HealthTable(*health);
  return {ExitCodeOf(health->health()), std::move(health), std::move(table), ""};
}

}  // namespace

Report RunHealth(const CommandContext& context) {
  const std::string& named = context.options.group;
  if (context.options.node_only) return OneHealth(context, "", "the node");
  if (!named.empty())
    return OneHealth(context, absl::StrCat("epd.group/", named), absl::StrCat("group ", named));
  Report status =
      CallNode(context, "GetStatus", &epd::v1::Node::Stub::GetStatus, epd::v1::GetStatusRequest());
  if (status.message == nullptr) return status;
  Report groups = CallNode(context, "ListGroups", &epd::v1::Node::Stub::ListGroups,
                           epd::v1::ListGroupsRequest());
  if (groups.message == nullptr) return groups;

  const auto& node = static_cast<const epd::v1::GetStatusResponse&>(*status.message);
  auto health = std::make_unique<HealthReport>();
  health->set_health(node.health());
  *health->mutable_problems() = node.problems();
  for (const char* service : {"", "epd.v1.Node"}) {
    const grpc::Status checked = Check(context, service, *health);
    if (!checked.ok()) return Failed(context, service, checked);
    if (!AllServe(*health)) health->set_health(epd::v1::HEALTH_UNHEALTHY);
  }
  std::set<std::string> services;  // One per tenant.
  for (const auto& group :
       static_cast<const epd::v1::ListGroupsResponse&>(*groups.message).groups()) {
    const std::string& tenant = group.spec().tenant();
    services.insert(
        absl::StrCat("epd.group/", group.spec().name(), tenant.empty() ? "" : "/", tenant));
  }
  for (const std::string& service : services) {
    const grpc::Status checked = Check(context, service, *health);
    // A group that ended since it was listed is no failure.
    if (!checked.ok() && checked.error_code() != grpc::StatusCode::NOT_FOUND)
      return Failed(context, service, checked);
  }
  // The node serves, but one of its groups does not.
  if (health->health() == epd::v1::HEALTH_OK && !AllServe(*health)) {
    health->set_health(epd::v1::HEALTH_DEGRADED);
  }
  std::string table = HealthTable(*health);
  return {ExitCodeOf(health->health()), std::move(health), std::move(table), ""};
}

}  // namespace epd::cli
