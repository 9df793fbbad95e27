// An epd on each of several nodes, and ranks on them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/integration/client_c/harness/node_network.h"
#include "tests/integration/client_c/harness/rank_process.h"
#include "tests/integration/client_c/harness/running_daemon.h"

namespace epd::testing {

// Node 0 coordinates.
class NodeFleet {
 public:
  // `wire`: the workers meet at the nodes' second addresses (namespaces only).
  explicit NodeFleet(int num_nodes, const std::vector<std::string>& flags = {}, bool wire = false);

  NodeNetwork& network() { return network_; }
  RunningDaemon& node(int index) { return *daemons_[static_cast<size_t>(index)]; }
  // Starts the epd of a node that has been killed.
  void Restart(int index);
  void Kill(int index) { node(index).Kill(); }

  // A process per rank, blocks of ranks on the nodes in their order.
  std::vector<std::unique_ptr<RankProcess>> StartRanks(
      const ExchangeCase& c, const std::function<std::string(JoinedRank&, Link&)>& body,
      const JoinOptions& options = {});
  // ... with options of its own.
  std::vector<std::unique_ptr<RankProcess>> StartRanks(
      const ExchangeCase& c, const std::function<std::string(JoinedRank&, Link&)>& body,
      const std::function<JoinOptions(uint32_t rank)>& options);
  int node_of(const ExchangeCase& c, uint32_t rank) const {
    return static_cast<int>(rank * daemons_.size() / c.num_ranks);
  }

 private:
  std::unique_ptr<RunningDaemon> Start(int index) const;
  void WaitForCoordinator(int index);

  NodeNetwork network_;
  const std::vector<std::string> flags_;
  const bool wire_;
  std::string coordinator_;
  std::vector<std::unique_ptr<RunningDaemon>> daemons_;
};

}  // namespace epd::testing
