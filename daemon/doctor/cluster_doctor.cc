#include "daemon/doctor/cluster_doctor.h"

#include <algorithm>
#include <map>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "daemon/doctor/findings.h"

namespace epd {
namespace {

v1::Finding Nodes(const ClusterAnswers& cluster) {
  std::vector<std::string> silent;
  for (const NodeAnswer& node : cluster.nodes) {
    if (!node.problem.empty())
      silent.push_back(absl::StrCat("node ", node.node, ": ", node.problem));
  }
  if (!cluster.problem.empty()) silent.push_back(cluster.problem);
  return MakeFinding(
      "nodes", silent.empty(),
      silent.empty() ? absl::StrCat(cluster.nodes.size(), " of ", cluster.nodes.size(), " answer")
                     : absl::StrJoin(silent, "; "),
      "groups with ranks there do not form, and those that were there have lost them",
      "look at epd's log on those nodes, and at the ports below");
}

v1::Finding Versions(const ClusterAnswers& cluster) {
  std::map<std::string, std::vector<std::string>> by_version;
  for (const NodeAnswer& node : cluster.nodes) {
    if (!node.problem.empty()) continue;
    by_version[node.version.empty() ? "an older one" : node.version].push_back(node.node);
  }
  const std::string found = absl::StrJoin(by_version, "; ", [](std::string* out, const auto& one) {
    absl::StrAppend(out, one.first, " on ", absl::StrJoin(one.second, ", "));
  });
  return MakeFinding("versions", by_version.size() < 2, found.empty() ? cluster.version : found,
                     "what only the newer ones can do is refused, and some pairs form no groups",
                     "upgrade the others: systemctl restart epd, one node after the other");
}

// How far `clock`, said between `asked` and `answered`, is off at least; before them it is negative.
absl::Duration Skew(absl::Time clock, absl::Time asked, absl::Time answered) {
  if (clock > answered) return clock - answered;
  return clock < asked ? clock - asked : absl::ZeroDuration();
}

v1::Finding Clocks(const ClusterAnswers& cluster) {
  absl::Duration most;
  std::vector<std::string> odd;
  for (const NodeAnswer& node : cluster.nodes) {
    if (!node.problem.empty() || !node.clock.has_value()) continue;
    const absl::Duration skew = Skew(*node.clock, cluster.asked, cluster.answered);
    const absl::Duration off = absl::AbsDuration(skew);
    most = std::max(most, off);
    if (off < kMaxClockSkew) continue;
    odd.push_back(absl::StrCat(
        "node ", node.node, " is ", absl::FormatDuration(absl::Trunc(off, absl::Seconds(1))),
        skew > absl::ZeroDuration() ? " ahead of" : " behind", " node ", cluster.self));
  }
  return MakeFinding(
      "clocks", odd.empty(),
      odd.empty()
          ? absl::StrCat("at most ", absl::FormatDuration(absl::Trunc(most, absl::Milliseconds(1))),
                         " apart, as far as the answers tell")
          : absl::StrJoin(odd, "; "),
      "logs and traces do not fit together, new certificates are not valid yet, and from a minute "
      "on no group forms",
      "run chrony or systemd-timesyncd on every node; 'timedatectl' says whether it does");
}

void AddPort(const std::string& address, const std::string& owner, std::vector<PortToTry>& ports) {
  const bool names_nobody = address.empty() || absl::StartsWith(address, "0.0.0.0:") ||
                            absl::StartsWith(address, "[::]:") || absl::EndsWith(address, ":0");
  const bool known =
      absl::c_any_of(ports, [&](const PortToTry& port) { return port.address == address; });
  if (!names_nobody && !known) ports.push_back({address, owner});
}

}  // namespace

std::vector<v1::Finding> DiagnoseCluster(const ClusterAnswers& cluster) {
  if (cluster.nodes.size() < 2 && cluster.problem.empty()) return {};
  return {Nodes(cluster), Versions(cluster), Clocks(cluster)};
}

std::vector<PortToTry> PortsOf(const ClusterAnswers& cluster) {
  std::vector<PortToTry> ports;
  for (const NodeAnswer& node : cluster.nodes) {
    if (node.node == cluster.self) continue;
    AddPort(node.address, absl::StrCat("epd of node ", node.node), ports);
    for (const std::string& wire : node.wire_addresses) {
      // "host:port,port": each stream of a pair of workers has one.
      const size_t host = wire.rfind(':') + 1;
      for (absl::string_view port : absl::StrSplit(absl::string_view(wire).substr(host), ','))
        AddPort(absl::StrCat(wire.substr(0, host), port),
                absl::StrCat("a worker of node ", node.node), ports);
    }
  }
  AddPort(cluster.coordinator_setting, "the setting coordinator", ports);
  return ports;
}

}  // namespace epd
