#include "client/cli/commands/command.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/cli/chrome_trace.pb.h"
#include "client/cli/json.h"
#include "client/cli/report.pb.h"
#include "client/cli/support_archive.pb.h"

namespace epd::cli {

const std::vector<Command>& Commands() {
  static const auto* const commands = [] {
    auto* const all = new std::vector<Command>(NodeCommands());
    all->push_back({"health", RunHealth, true, HealthReport::descriptor()});
    all->push_back({"doctor", RunDoctor, false, DoctorReport::descriptor()});
    all->push_back({"explain", RunExplain, false, ExplainReport::descriptor()});
    all->push_back({"version", RunVersion, false, VersionReport::descriptor()});
    all->push_back(
        {"support-archive", RunSupportArchive, false, SupportArchiveReport::descriptor()});
    all->push_back({"trace", RunTrace, true, ChromeTrace::descriptor()});
    all->push_back({"replace", RunReplace, true, epd::v1::ReplaceResponse::descriptor()});
    return all;
  }();
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

}  // namespace epd::cli
