// Goal: a group whose ranks are on several GPUs of several nodes does the five operations with the bits that plain loops give,
// over an epd per node, a worker process per fake device and a fake NCCL that carries the bytes: GPUs of one node read each
// other's memory, and only rows for other nodes go by NCCL, which `epctl groups` says; a killed worker, of whichever node, is
// named on every rank, and the group goes on in a new epoch in the same way; no call breaks a rule of the driver or of NCCL.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "daemon/backend/child_output.h"
#include "tests/integration/client_c/harness/exchange_cases.h"
#include "tests/integration/client_c/harness/node_fleet.h"
#include "tests/integration/cuda/on_cuda.h"
#include "tests/integration/cuda/stream_rank.h"
#include "tests/integration/cuda/stream_steps.h"

namespace epd::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr int kNodes = 2;
constexpr char kReads[] = "rows go directly between the node's devices, and by NCCL between nodes";

// Each worker says so in each epoch.
int CountReads(const std::string& log) {
  int count = 0;
  for (size_t at = log.find(kReads); at != std::string::npos; at = log.find(kReads, at + 1)) {
    ++count;
  }
  return count;
}

class CudaMixedNodes : public OnFakeGpu {
 protected:
  CudaMixedNodes() { setenv("EPD_FAKE_CUDA", "devices=2", 1); }

  // What `epctl groups` of each node prints.
  static std::vector<std::string> Groups(NodeFleet& fleet) {
    std::vector<std::string> said;
    for (int n = 0; n < kNodes; ++n) {
      const auto table =
          RunChild(std::filesystem::absolute("client/cli/epctl"),
                   {"--socket=" + fleet.node(n).socket_path(), "groups"}, absl::Seconds(40));
      said.push_back(table.ok() ? table->output : std::string(table.status().message()));
    }
    return said;
  }

  const std::vector<std::string> flags_ = {"--cuda_staging_bytes=512MiB", "--cuda_devices=0,1",
                                           "--plain_unique_ids=allow"};
};

TEST_F(CudaMixedNodes, EveryRankGetsWhatPlainLoopsGive) {
  NodeFleet fleet(kNodes, flags_);
  for (const uint32_t num_ranks : {4, 8}) {
    for (ExchangeCase c : CasesOfNodes(num_ranks)) {
      c.worker_executor = true;
      for (uint32_t& owner : c.expert_owner) owner %= num_ranks;
      SCOPED_TRACE(c.ToString());
      auto ranks = fleet.StartRanks(c, RunTwice, OnEither);
      EXPECT_THAT(FinishAll(ranks), Each(""));
    }
  }
  for (int n = 0; n < kNodes; ++n) {
    EXPECT_THAT(fleet.node(n).Log(), AllOf(HasSubstr(kReads), Not(HasSubstr("worker ended"))));
  }
}

TEST_F(CudaMixedNodes, TheGroupSaysHowItsRowsGoAndTwoTenantsShareTheWay) {
  NodeFleet fleet(kNodes, flags_);
  const ExchangeCase c{.num_ranks = 4, .num_experts = 8, .worker_executor = true};
  auto first = fleet.StartRanks(c, RunUntilTold, OnEither);
  auto second = fleet.StartRanks(c, RunUntilTold, [](uint32_t rank) {
    JoinOptions options = OnEither(rank);
    options.tenant = "other";
    return options;
  });
  for (const auto* ranks : {&first, &second}) {
    for (const auto& rank : *ranks) ASSERT_EQ(rank->link().Hear(), "ran");
  }
  EXPECT_THAT(Groups(fleet), Each(HasSubstr("peer_memory_and_nccl")));
  EXPECT_EQ(gpu_.CountNcclMarks('r'), 4) << "one communicator for both";
  for (auto* ranks : {&first, &second}) {
    for (const auto& rank : *ranks) rank->link().Say("stop");
    EXPECT_THAT(FinishAll(*ranks), Each(""));
  }
}

TEST_F(CudaMixedNodes, WithoutPeerAccessInOneDirectionAllRowsGoByNcclAndTheLogSaysWhy) {
  setenv("EPD_FAKE_CUDA", "devices=2 nopeer=1-0", 1);
  NodeFleet fleet(kNodes, flags_);
  ExchangeCase c = CasesOfNodes(4)[0];
  c.worker_executor = true;
  auto ranks = fleet.StartRanks(c, RunTwice, OnEither);
  EXPECT_THAT(FinishAll(ranks), Each(""));
  for (int n = 0; n < kNodes; ++n) {
    EXPECT_THAT(fleet.node(n).Log(),
                HasSubstr("rows go by NCCL also between the node's devices: cuda:1 has no peer "
                          "access to cuda:0"));
  }
}

TEST_F(CudaMixedNodes, StreamsGetWhatPlainLoopsGiveAlsoInReplays) {
  NodeFleet fleet(kNodes, flags_);
  const ExchangeCase c{.num_ranks = 4,
                       .num_experts = 8,
                       .alignment = 4,
                       .routing = Routing::kSomeMissing,
                       .worker_executor = true};
  const auto body = [&c](JoinedRank& joined, Link&) {
    const uint32_t rank = joined.rank->rank();
    StreamRank streams(FakeGpu::Library(), joined, c, static_cast<int>(rank % 2));
    std::string problem = streams.problem;
    if (problem.empty()) problem = RunSteps(streams, c, rank, 0, 3);
    if (problem.empty()) problem = ReplaySteps(streams, c, rank, 3, 60);
    return problem;
  };
  auto ranks = fleet.StartRanks(c, body, OnEither);
  EXPECT_THAT(FinishAll(ranks), Each(""));
  for (int n = 0; n < kNodes; ++n) EXPECT_THAT(fleet.node(n).Log(), HasSubstr(kReads));
}

// Of node n1, seen from its own node and from n0.
class CudaMixedNodesKilled : public CudaMixedNodes,
                             public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Workers, CudaMixedNodesKilled, ::testing::Values("cuda:0", "cuda:1"),
                         [](const auto& info) { return std::string(info.param).substr(5); });

TEST_P(CudaMixedNodesKilled, IsNamedOnEveryRankAndTheGroupGoesOnInANewEpoch) {
  NodeFleet fleet(kNodes, flags_);
  const ExchangeCase c{.num_ranks = 4, .num_experts = 8, .worker_executor = true};
  auto ranks = fleet.StartRanks(c, FailAndRecover(), OnEither);
  for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "ran");
  EXPECT_EQ(gpu_.CountNcclMarks('r'), 4);
  kill(fleet.node(1).worker_pid(GetParam()), SIGKILL);
  const std::vector<std::string> heard = FinishAll(ranks);
  EXPECT_THAT(heard, Each(AnyOf(StartsWith("[epd:ABORTED] group=gpu"),
                                StartsWith("[epd:UNAVAILABLE] group=gpu"))));
  EXPECT_THAT(heard, Each(HasSubstr("the worker of node n1 " + std::string(GetParam()))));
  EXPECT_GE(gpu_.CountNcclMarks('r'), 8) << "a new communicator";
  EXPECT_GE(gpu_.CountNcclMarks('a'), 3) << "all survivors aborted the first one";
  for (int n = 0; n < kNodes; ++n) EXPECT_GE(CountReads(fleet.node(n).Log()), 4) << "n" << n;
}

}  // namespace
}  // namespace epd::testing
