#include "absl/strings/str_cat.h"
#include "client/cli/printers/tables.h"
#include "client/cli/table.h"

namespace epd::cli {
namespace {

void AddFindings(const google::protobuf::RepeatedPtrField<epd::v1::Finding>& findings,
                 const std::string& seen_by, Table& table, std::string& advice) {
  for (const epd::v1::Finding& finding : findings) {
    table.AddRow({finding.ok() ? "ok" : "NOT OK", finding.what(), finding.found(), seen_by});
    if (finding.consequence().empty() && finding.fix().empty()) continue;
    absl::StrAppend(&advice, "\n", finding.what(), ": ", finding.found(), "\n");
    if (!finding.consequence().empty())
      absl::StrAppend(&advice, "  means: ", finding.consequence(), "\n");
    if (!finding.fix().empty()) absl::StrAppend(&advice, "  do:    ", finding.fix(), "\n");
  }
}

}  // namespace

std::string HealthTable(const HealthReport& health) {
  std::string text = absl::StrCat(EnumWord(epd::v1::Health_Name(health.health()), "HEALTH_"), "\n");
  for (const std::string& problem : health.problems())
    absl::StrAppend(&text, "problem: ", problem, "\n");
  using S = HealthReport::Service;
  const Fields<S> fields = {
      {"SERVICE", [](const S& s) { return s.name().empty() ? "(node)" : s.name(); }},
      {"STATUS", [](const S& s) { return EnumWord(s.status(), ""); }},
  };
  return absl::StrCat(text, "\n", MakeTable(health.services(), fields, ""));
}

std::string DoctorTable(const DoctorReport& doctor) {
  Table table({{"RESULT"}, {"CHECK"}, {"FOUND"}, {"SEEN BY"}});
  std::string advice;
  AddFindings(doctor.local(), "epctl", table, advice);
  AddFindings(doctor.daemon(), "epd", table, advice);
  return absl::StrCat(table.ToString(), advice);
}

std::string ConfigTable(const epd::v1::GetConfigResponse& config) {
  using S = epd::v1::Setting;
  const Fields<S> fields = {
      {"SETTING", [](const S& s) { return s.name(); }},
      {"VALUE", [](const S& s) { return s.value(); }},
      {"FROM", [](const S& s) { return s.origin(); }},
  };
  return MakeTable(config.settings(), fields, "") +
         "\nepd --help explains each; --print-config prints them without a daemon.\n";
}

std::string VersionTable(const VersionReport& version) {
  const auto range = [](uint32_t min, uint32_t max) {
    return min == max ? absl::StrCat("protocol ", min)
                      : absl::StrCat("protocol ", min, " to ", max);
  };
  std::string daemon;
  if (version.connected()) {
    daemon = absl::StrCat(
        version.daemon(), " (",
        range(version.daemon_min_protocol_version(), version.daemon_max_protocol_version()),
        ") on ", version.node());
  }
  return AlignedPairs(
      {{"epctl",
        absl::StrCat(version.epctl(), " (",
                     range(version.min_protocol_version(), version.max_protocol_version()), ")")},
       {"epd", daemon}});
}

}  // namespace epd::cli
