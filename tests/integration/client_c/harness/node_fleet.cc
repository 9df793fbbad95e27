#include "tests/integration/client_c/harness/node_fleet.h"

#include <gtest/gtest.h>

namespace epd::testing {

NodeFleet::NodeFleet(int num_nodes, const std::vector<std::string>& flags, bool wire)
    : network_(num_nodes), flags_(flags), wire_(wire && network_.namespaces()) {
  for (int index = 0; index < num_nodes; ++index) {
    daemons_.push_back(Start(index));
    if (index == 0) coordinator_ = daemons_[0]->listen_address();
  }
  for (int index = 1; index < num_nodes; ++index) WaitForCoordinator(index);
}

void NodeFleet::WaitForCoordinator(int index) {
  const bool connected = Eventually(
      30, [&] { return node(index).Log().find("coordinator connected") != std::string::npos; });
  EXPECT_TRUE(connected) << node(index).Log();
}

std::unique_ptr<RunningDaemon> NodeFleet::Start(int index) const {
  std::vector<std::string> flags = flags_;
  flags.push_back("--node=n" + std::to_string(index));
  flags.push_back("--listen=" + network_.address(index) + ":0");
  if (wire_) flags.push_back("--wire_listen=" + network_.wire_address(index) + ":0");
  flags.push_back("--staging_bytes=256MiB");
  flags.push_back(coordinator_.empty() ? "--start_grace=0" : "--coordinator=" + coordinator_);
  return std::make_unique<RunningDaemon>(flags, network_.wrap(index));
}

void NodeFleet::Restart(int index) {
  daemons_[static_cast<size_t>(index)] = Start(index);
  WaitForCoordinator(index);
}

std::vector<std::unique_ptr<RankProcess>> NodeFleet::StartRanks(
    const ExchangeCase& c, const std::function<std::string(JoinedRank&, Link&)>& body,
    const JoinOptions& options) {
  return StartRanks(c, body, [&](uint32_t) { return options; });
}

std::vector<std::unique_ptr<RankProcess>> NodeFleet::StartRanks(
    const ExchangeCase& c, const std::function<std::string(JoinedRank&, Link&)>& body,
    const std::function<JoinOptions(uint32_t rank)>& options) {
  std::vector<std::unique_ptr<RankProcess>> ranks;
  std::vector<RankData> data = MakeExchange(c);
  for (uint32_t rank = 0; rank < c.num_ranks; ++rank) {
    const std::string socket = node(node_of(c, rank)).socket_path();
    ranks.push_back(std::make_unique<RankProcess>([&, socket](Link& link) -> std::string {
      JoinedRank joined(socket, c, rank, options(rank), std::move(data[rank]));
      return joined.problem.empty() ? body(joined, link) : joined.problem;
    }));
  }
  return ranks;
}

}  // namespace epd::testing
