// Goal: groups with backend=cuda whose ranks are on several nodes do the five operations with the bits that
// plain loops give, over real processes, a fake driver and a fake NCCL that carries the bytes; two tenants
// enter the communicator in one order; a lost worker is named, every survivor aborts, and the group goes on
// in a new epoch with a new id; no call ever breaks a rule of the driver or of NCCL.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <vector>

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

const std::vector<std::string> kStaging = {"--cuda_staging_bytes=512MiB",
                                           "--plain_unique_ids=allow"};

using CudaNodes = OnFakeGpu;

TEST_F(CudaNodes, EveryRankOfSeveralNodesGetsWhatPlainLoopsGive) {
  for (const int num_nodes : {2, 3}) {
    NodeFleet fleet(num_nodes, kStaging);
    for (ExchangeCase c : CasesOfNodes(6)) {
      c.worker_executor = true;
      SCOPED_TRACE(std::to_string(num_nodes) + " nodes, " + c.ToString());
      auto ranks = fleet.StartRanks(c, RunTwice, kOnCuda);
      EXPECT_THAT(FinishAll(ranks), Each(""));
    }
    for (int n = 0; n < num_nodes; ++n) {
      EXPECT_EQ(fleet.node(n).Log().find("worker ended"), std::string::npos);
    }
  }
}

TEST_F(CudaNodes, TwoTenantsOfAGroupEnterItsCommunicatorInOneOrder) {
  NodeFleet fleet(2, kStaging);
  const ExchangeCase c{.num_ranks = 4, .num_experts = 8, .worker_executor = true};
  const auto body = [](JoinedRank& joined, Link&) -> std::string {
    for (int step = 0; step < 10; ++step) {
      const std::string problem = joined.rank->RunAndCompare(joined.data);
      if (!problem.empty()) return "step " + std::to_string(step) + ": " + problem;
    }
    return "";
  };
  JoinOptions other = kOnCuda;
  other.tenant = "other";
  auto first = fleet.StartRanks(c, body, kOnCuda);
  auto second = fleet.StartRanks(c, body, other);
  EXPECT_THAT(FinishAll(first), Each(""));
  EXPECT_THAT(FinishAll(second), Each(""));
  EXPECT_EQ(gpu_.CountNcclMarks('r'), 2) << "one communicator for both";
}

TEST_F(CudaNodes, AKilledWorkerIsNamedEverySurvivorAbortsAndTheGroupGoesOnWithANewId) {
  NodeFleet fleet(3, kStaging);
  const ExchangeCase c{.num_ranks = 6, .num_experts = 6, .worker_executor = true};
  auto ranks = fleet.StartRanks(c, FailAndRecover(), kOnCuda);
  for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "ran");
  EXPECT_EQ(gpu_.CountNcclMarks('r'), 3);
  kill(fleet.node(1).worker_pid("cuda:0"), SIGKILL);
  const std::vector<std::string> heard = FinishAll(ranks);
  EXPECT_THAT(heard, Each(AnyOf(StartsWith("[epd:ABORTED] group=gpu"),
                                StartsWith("[epd:UNAVAILABLE] group=gpu"))));
  // Whoever is first to say so: a stream names its node or the ranks there, epd its worker.
  for (const size_t rank : {0, 1, 4, 5}) {
    EXPECT_THAT(heard[rank], AnyOf(HasSubstr("n1"), HasSubstr("rank=2 host=")));
  }
  for (const size_t rank : {2, 3}) {
    EXPECT_THAT(heard[rank], AnyOf(HasSubstr("n1"), HasSubstr("worker (pid")));
  }
  EXPECT_GE(gpu_.CountNcclMarks('r'), 6) << "a new communicator";
  EXPECT_GE(gpu_.CountNcclMarks('a'), 2) << "both survivors aborted the first one";
}

// Calls from streams. On three ranks over two nodes one has more than the other, and no tokens on one of them.
std::vector<ExchangeCase> StreamCases() {
  ExchangeCase plain{
      .num_ranks = 4, .num_experts = 8, .alignment = 4, .routing = Routing::kSomeMissing};
  ExchangeCase uneven{.num_ranks = 3,
                      .num_experts = 6,
                      .top_k = 3,
                      .hidden = 40,
                      .dtype = EPD_DTYPE_BFLOAT16,
                      .num_tokens = {5, 0, 9},
                      .expert_owner = {2, 0, 1, 1, 0, 2}};
  ExchangeCase drops{.num_ranks = 4, .capacity = 6, .drop = true};
  std::vector<ExchangeCase> cases = {plain, uneven, drops};
  for (ExchangeCase& c : cases) c.worker_executor = true;
  return cases;
}

TEST_F(CudaNodes, StreamsOfSeveralNodesGetWhatPlainLoopsGiveAlsoInReplays) {
  NodeFleet fleet(2, kStaging);
  for (const ExchangeCase& c : StreamCases()) {
    SCOPED_TRACE(c.ToString());
    const auto body = [&c](JoinedRank& joined, Link&) {
      StreamRank streams(FakeGpu::Library(), joined, c);
      const uint32_t rank = joined.rank->rank();
      std::string problem = streams.problem;
      if (problem.empty()) problem = RunSteps(streams, c, rank, 0, 3);
      if (problem.empty()) problem = ReplaySteps(streams, c, rank, 3, 60);
      return problem;
    };
    auto ranks = fleet.StartRanks(c, body, kOnCuda);
    EXPECT_THAT(FinishAll(ranks), Each(""));
  }
  for (int n = 0; n < 2; ++n) {
    EXPECT_EQ(fleet.node(n).Log().find("worker ended"), std::string::npos);
  }
}

TEST_F(CudaNodes, AKilledWorkerFailsAReplayOnEveryNodeAndTheNextEpochReplaysRight) {
  NodeFleet fleet(2, kStaging);
  const ExchangeCase c = StreamCases()[0];
  const auto body = [&c](JoinedRank& joined, Link& link) {
    return RunUntilKilled({c, ReplaySteps}, joined, link);
  };
  auto ranks = fleet.StartRanks(c, body, kOnCuda);
  for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "running");
  kill(fleet.node(1).worker_pid("cuda:0"), SIGKILL);
  for (const auto& rank : ranks) EXPECT_EQ(rank->link().Hear(), "again");
  for (const auto& rank : ranks) rank->link().Say("go");
  const std::vector<std::string> heard = FinishAll(ranks);
  // 10: ABORTED, 14: UNAVAILABLE. Whoever is first says so: a stream, or epd.
  EXPECT_THAT(heard,
              Each(AllOf(StartsWith("step "), AnyOf(HasSubstr(": 10: "), HasSubstr(": 14: ")),
                         Not(HasSubstr(", and left ")))));
  EXPECT_GE(gpu_.CountNcclMarks('r'), 4) << "a new communicator";
}

TEST_F(CudaNodes, WhereANodeHasNoNcclTheGroupIsRefusedWithTheReason) {
  NodeFleet fleet(2, {"--cuda_staging_bytes=256MiB", "--nccl_library=/none/libnccl.so.2"});
  const ExchangeCase c{.num_ranks = 2, .worker_executor = true};
  auto ranks = fleet.StartRanks(
      c, [](JoinedRank&, Link&) -> std::string { return "joined"; }, kOnCuda);
  EXPECT_THAT(FinishAll(ranks),
              Each(AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("needs NCCL"))));
}

}  // namespace
}  // namespace epd::testing
