// Which of a list of nodes coordinates: the first. All nodes are given the same list, so they agree.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace epd {

// "node[01-03,07],gpu5" -> {"node01", "node02", "node03", "node07", "gpu5"}, as Slurm writes node
// lists; one pair of brackets per name.
//   INVALID_ARGUMENT  does not parse
absl::StatusOr<std::vector<std::string>> ExpandNodeList(const std::string& text);

// The host:port of the first peer. `peers` is "host:port,host:port,..." or "slurm:port", which
// means the nodes of `slurm_nodes` (SLURM_JOB_NODELIST).
//   INVALID_ARGUMENT     names what was got and the forms that are expected
//   FAILED_PRECONDITION  "slurm" outside of a Slurm job
absl::StatusOr<std::string> FirstPeer(const std::string& peers, const std::string& slurm_nodes);

// Whether `address` (host:port) names this node: one of `own_names`, or one of them with a domain
// behind it ("epd-0" is "epd-0.epd.default.svc"). Names are compared as text, nothing is looked up.
bool IsThisNode(const std::string& address, const std::vector<std::string>& own_names);

}  // namespace epd
