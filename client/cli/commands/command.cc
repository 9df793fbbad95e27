#include "client/cli/commands/command.h"

#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "client/cli/json.h"
#include "client/cli/report.pb.h"

namespace epd::cli {

const std::vector<Command>& Commands() {
  static const auto* const commands = new std::vector<Command>{
      {"status", RunStatus, true, epd::v1::GetStatusResponse::descriptor()},
      {"groups", RunGroups, true, epd::v1::ListGroupsResponse::descriptor()},
      {"sessions", RunSessions, true, epd::v1::ListSessionsResponse::descriptor()},
      {"ranks", RunRanks, true, epd::v1::ListRanksResponse::descriptor()},
      {"memory", RunMemory, true, epd::v1::GetMemoryResponse::descriptor()},
      {"health", RunHealth, true, HealthReport::descriptor()},
      {"doctor", RunDoctor, false, DoctorReport::descriptor()},
      {"drain", RunDrain, true, epd::v1::DrainGroupResponse::descriptor()},
      {"close", RunClose, true, epd::v1::CloseGroupResponse::descriptor()},
      {"create", RunCreate, true, epd::v1::CreateGroupResponse::descriptor()},
      {"plan", RunPlan, true, epd::v1::PlanMemoryResponse::descriptor()},
      {"config", RunConfig, true, epd::v1::GetConfigResponse::descriptor()},
      {"version", RunVersion, false, VersionReport::descriptor()},
      {"why", RunWhy, true, epd::v1::ExplainGroupResponse::descriptor()},
      {"status --all-nodes", RunStatusOfAllNodes, true, epd::v1::ListNodesResponse::descriptor()},
      {"version --all-nodes", RunVersionOfAllNodes, true, epd::v1::ListNodesResponse::descriptor()},
  };
  return *commands;
}

std::map<std::string, std::string> OutputSchemas() {
  std::map<std::string, std::string> schemas;
  for (const Command& command : Commands()) {
    schemas[absl::StrReplaceAll(command.name, {{" --", "_"}, {"-", "_"}}) + ".json"] =
        JsonSchema(*command.output, absl::StrCat("epctl ", command.name, " -o json"));
  }
  schemas["error.json"] = JsonSchema(*ErrorReport::descriptor(), "a failed epctl ... -o json");
  return schemas;
}

ExitCode ExitCodeOf(epd::v1::Health health) {
  switch (health) {
    case epd::v1::HEALTH_OK:
      return ExitCode::kOk;
    case epd::v1::HEALTH_DEGRADED:
      return ExitCode::kDegraded;
    default:
      return ExitCode::kUnhealthy;
  }
}

std::string NewRequestId() {
  std::random_device random;
  return absl::StrFormat("epctl-%08x%08x%08x%08x", random(), random(), random(), random());
}

}  // namespace epd::cli
