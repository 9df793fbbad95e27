// What an operator should know about the nodes of a cluster together: who does not answer, versions, clocks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/epd/v1/node.pb.h"

namespace epd {

// What one node said, or why it did not.
struct NodeAnswer {
  std::string node;
  std::string problem = {};                        // Empty: it answered.
  std::string version = {};                        // Empty: it is of an epd that does not say.
  std::optional<absl::Time> clock = std::nullopt;  // Its wall clock when it answered.
  std::string address = {};                        // Where its epd takes calls; empty: not said.
  std::vector<std::string> wire_addresses = {};    // Where its workers take streams.
};

struct ClusterAnswers {
  std::string self;
  std::string version;              // Of this epd.
  std::string coordinator_setting;  // "host:port" or "".
  std::string problem;              // Why nobody could be asked; empty: they were.
  absl::Time asked;                 // By this node's clock.
  absl::Time answered;
  std::vector<NodeAnswer> nodes;  // This one too.
};

// From here on a clock is a finding; groups are refused at a minute.
inline constexpr absl::Duration kMaxClockSkew = absl::Seconds(5);

// Pure: "nodes", "versions" and "clocks"; none where this node is alone. A clock is as far off as it is outside of the time
// between question and answer, so the network's delay is no finding.
std::vector<v1::Finding> DiagnoseCluster(const ClusterAnswers& cluster);

// A port of another node, and whose it is: "epd of node b", "a worker of node b".
struct PortToTry {
  std::string address;
  std::string owner;

  bool operator==(const PortToTry&) const = default;
};

// Pure: what this node must reach. Addresses with the host 0.0.0.0 or [::] name nobody and are left out.
std::vector<PortToTry> PortsOf(const ClusterAnswers& cluster);

}  // namespace epd
