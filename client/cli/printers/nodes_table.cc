#include <map>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/human.h"
#include "client/cli/printers/tables.h"
#include "client/cli/table.h"

namespace epd::cli {
namespace {

using Entry = epd::v1::ListNodesResponse::Entry;

std::string MostCommonVersion(const epd::v1::ListNodesResponse& nodes) {
  std::map<std::string, int> votes;
  for (const Entry& node : nodes.nodes()) {
    if (node.has_status()) ++votes[node.status().version()];
  }
  const auto most =
      absl::c_max_element(votes, [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == votes.end() ? "" : most->first;
}

}  // namespace

std::string NodesTable(const epd::v1::ListNodesResponse& nodes) {
  // What only a node that answered says.
  const auto answered = [](auto text) {
    return [text](const Entry& n) { return n.has_status() ? text(n.status()) : std::string(); };
  };
  using S = epd::v1::GetStatusResponse;
  const Fields<Entry> fields = {
      {"NODE", [](const Entry& n) { return n.node(); }},
      {"HEALTH",
       [](const Entry& n) {
         return n.has_status() ? EnumWord(epd::v1::Health_Name(n.status().health()), "HEALTH_")
                               : "no answer";
       }},
      {"EPD", answered([](const S& s) { return s.version(); })},
      {"GROUPS", answered([](const S& s) { return absl::StrCat(s.num_groups()); }), Align::kRight},
      {"SESSIONS", answered([](const S& s) { return absl::StrCat(s.num_sessions()); }),
       Align::kRight},
      {"CERTIFICATE", answered([](const S& s) { return CertificateText(s); }), Align::kRight},
      {"SEEN", [](const Entry& n) { return n.has_last_seen() ? HumanDuration(n.last_seen()) : ""; },
       Align::kRight},
      {"ROLE",
       [&](const Entry& n) { return n.node() == nodes.coordinator() ? "coordinator" : ""; }},
      {"PROBLEM",
       [](const Entry& n) {
         return n.has_status() ? absl::StrJoin(n.status().problems(), "; ") : n.problem().message();
       }},
  };
  return MakeTable(nodes.nodes(), fields, "no nodes\n");
}

std::string NodeVersionsTable(const epd::v1::ListNodesResponse& nodes) {
  const std::string most = MostCommonVersion(nodes);
  const Fields<Entry> fields = {
      {"NODE", [](const Entry& n) { return n.node(); }},
      {"EPD", [](const Entry& n) { return n.has_status() ? n.status().version() : "no answer"; }},
      {"PROTOCOL",
       [](const Entry& n) {
         return n.has_status() ? absl::StrCat(n.status().min_protocol_version(), " to ",
                                              n.status().max_protocol_version())
                               : "";
       }},
      {"SKEW",
       [&](const Entry& n) {
         if (!n.has_status()) return n.problem().message();
         return n.status().version() == most ? "" : absl::StrCat("most nodes have ", most);
       }},
  };
  return MakeTable(nodes.nodes(), fields, "no nodes\n");
}

}  // namespace epd::cli
