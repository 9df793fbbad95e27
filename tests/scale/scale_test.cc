// Goal: what a node sends and receives until its group is formed does not depend on how many nodes
// there are: messages are linear in nodes, over real gRPC and with a real coordinator.
#include <gtest/gtest.h>

#include "absl/time/time.h"
#include "tests/integration/client_c/harness/running_daemon.h"
#include "tests/scale/simulated_nodes.h"

namespace epd::scale {
namespace {

constexpr size_t kRanksPerNode = 8;
constexpr absl::Duration kPatience = absl::Minutes(1);

Traffic Form(size_t num_nodes) {
  const testing::RunningDaemon coordinator(
      {"--node=coordinator", "--listen=127.0.0.1:0", "--start_grace=0"});
  SimulatedNodes nodes({.coordinator = coordinator.listen_address(),
                        .secret = testing::kClusterSecret,
                        .num_nodes = num_nodes,
                        .ranks_per_node = kRanksPerNode});
  EXPECT_EQ(nodes.Connect(kPatience), absl::OkStatus());
  nodes.TakeTraffic();
  const auto num_ranks = static_cast<uint32_t>(num_nodes * kRanksPerNode);
  EXPECT_EQ(nodes.Form("scale", num_ranks, kPatience), absl::OkStatus());
  return nodes.TakeTraffic();
}

// A view or report that overtakes another may replace it, or a second may pass: some leeway.
TEST(ScaleTest, MessagesAreLinearInNodes) {
  // Each of a node's ranks joins with a report of its own; then a few more carry the formation.
  constexpr size_t kMostOfANode = 2 * kRanksPerNode + 24;
  for (const size_t num_nodes : {4, 8, 16}) {
    const Traffic traffic = Form(num_nodes);
    EXPECT_LE(traffic.reports + traffic.views, kMostOfANode * num_nodes) << num_nodes << " nodes";
    EXPECT_LE(traffic.most_of_a_node, kMostOfANode) << num_nodes << " nodes";
    EXPECT_GE(traffic.reports, num_nodes);
    EXPECT_GE(traffic.views, num_nodes);
  }
}

}  // namespace
}  // namespace epd::scale
