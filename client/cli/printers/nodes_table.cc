#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/human.h"
#include "client/cli/printers/tables.h"
#include "client/cli/table.h"

namespace epd::cli {
namespace {

using Entry = epd::v1::ListNodesResponse::Entry;

std::string RoleOf(const Entry& node, const epd::v1::ListNodesResponse& nodes) {
  return node.node() == nodes.coordinator() ? "coordinator" : "";
}

std::string MostCommonVersion(const epd::v1::ListNodesResponse& nodes) {
  std::map<std::string, int> votes;
  for (const Entry& node : nodes.nodes()) {
    if (node.has_status()) ++votes[node.status().version()];
  }
  const auto most = std::max_element(
      votes.begin(), votes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == votes.end() ? "" : most->first;
}

}  // namespace

std::string NodesTable(const epd::v1::ListNodesResponse& nodes) {
  Table table({{"NODE"},
               {"HEALTH"},
               {"EPD"},
               {"GROUPS", Align::kRight},
               {"SESSIONS", Align::kRight},
               {"SEEN", Align::kRight},
               {"ROLE"},
               {"PROBLEM"}});
  for (const Entry& node : nodes.nodes()) {
    const std::string seen = HumanDuration(node.last_seen());
    if (!node.has_status()) {
      table.AddRow({node.node(), "no answer", "", "", "", seen, RoleOf(node, nodes),
                    node.problem().message()});
      continue;
    }
    const epd::v1::GetStatusResponse& status = node.status();
    table.AddRow({node.node(), EnumWord(epd::v1::Health_Name(status.health()), "HEALTH_"),
                  status.version(), absl::StrCat(status.num_groups()),
                  absl::StrCat(status.num_sessions()), seen, RoleOf(node, nodes),
                  absl::StrJoin(status.problems(), "; ")});
  }
  return table.empty() ? "no nodes\n" : table.ToString();
}

std::string NodeVersionsTable(const epd::v1::ListNodesResponse& nodes) {
  const std::string most = MostCommonVersion(nodes);
  Table table({{"NODE"}, {"EPD"}, {"PROTOCOL"}, {"SKEW"}});
  for (const Entry& node : nodes.nodes()) {
    if (!node.has_status()) {
      table.AddRow({node.node(), "no answer", "", node.problem().message()});
      continue;
    }
    const epd::v1::GetStatusResponse& status = node.status();
    table.AddRow(
        {node.node(), status.version(),
         absl::StrCat(status.min_protocol_version(), " to ", status.max_protocol_version()),
         status.version() == most ? "" : absl::StrCat("most nodes have ", most)});
  }
  return table.empty() ? "no nodes\n" : table.ToString();
}

}  // namespace epd::cli
