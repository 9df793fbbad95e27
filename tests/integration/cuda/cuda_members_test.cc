// Goal: a group whose ranks are on several GPUs of one node does the five operations with the bits that plain loops
// give, over one epd, a worker process per fake device and a fake NCCL that carries the bytes; when one worker is
// killed every rank hears a typed error, and the group goes on in a new epoch; no call ever breaks a rule
// of the driver or of NCCL.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>

#include "tests/integration/client_c/harness/exchange_cases.h"
#include "tests/integration/client_c/harness/rank_process.h"
#include "tests/integration/client_c/harness/running_daemon.h"
#include "tests/integration/cuda/on_cuda.h"

namespace epd::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class CudaMembers : public OnFakeGpu {
 protected:
  CudaMembers() { setenv("EPD_FAKE_CUDA", "devices=2", 1); }

  // Ranks are on the two devices in turns, so that neighbours have different workers.
  static JoinOptions OnEither(uint32_t rank) {
    JoinOptions options = kOnCuda;
    options.device = rank % 2 == 0 ? "cuda:0" : "cuda:1";
    return options;
  }

  // No TLS, no cluster: what the two workers tell each other stays on the node.
  const std::vector<std::string> flags_ = {"--cuda_staging_bytes=512MiB", "--cuda_devices=0,1"};
};

TEST_F(CudaMembers, EveryRankOnTwoGpusOfANodeGetsWhatPlainLoopsGive) {
  RunningDaemon daemon(flags_);
  for (const uint32_t num_ranks : {2, 4}) {
    for (ExchangeCase c : CasesOfNodes(num_ranks)) {
      c.worker_executor = true;
      for (uint32_t& owner : c.expert_owner) owner %= num_ranks;
      SCOPED_TRACE(c.ToString());
      auto ranks = StartRanks(daemon.socket_path(), c, RunTwice, OnEither);
      EXPECT_THAT(FinishAll(ranks), Each(""));
    }
  }
  EXPECT_EQ(daemon.Log().find("worker ended"), std::string::npos);
  EXPECT_GE(gpu_.CountNcclMarks('r'), 4) << "rows went between the devices by NCCL";
}

class CudaMemberKilled : public CudaMembers, public ::testing::WithParamInterface<std::string> {};
INSTANTIATE_TEST_SUITE_P(Both, CudaMemberKilled, ::testing::Values("cuda:0", "cuda:1"),
                         [](const auto& info) { return info.param.substr(5); });

TEST_P(CudaMemberKilled, IsATypedErrorOnEveryRankAndTheGroupGoesOnInANewEpoch) {
  RunningDaemon daemon(flags_);
  const ExchangeCase c{.num_ranks = 4, .num_experts = 8, .worker_executor = true};
  auto ranks = StartRanks(daemon.socket_path(), c, FailAndRecover(1000), OnEither);
  for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "ran");
  EXPECT_EQ(gpu_.CountNcclMarks('r'), 2);
  kill(daemon.worker_pid(GetParam()), SIGKILL);
  EXPECT_THAT(FinishAll(ranks), Each(AnyOf(StartsWith("[epd:ABORTED] group=gpu"),
                                           StartsWith("[epd:UNAVAILABLE] group=gpu"))));
  EXPECT_GE(gpu_.CountNcclMarks('r'), 4) << "a new communicator";
  EXPECT_GE(gpu_.CountNcclMarks('a'), 1) << "the survivor aborted the first one";
}

TEST_F(CudaMembers, WithoutNcclTheGroupIsRefusedWithTheWorkersName) {
  RunningDaemon daemon(
      {"--cuda_staging_bytes=256MiB", "--cuda_devices=0,1", "--nccl_library=/none/libnccl.so.2"});
  const ExchangeCase c{.num_ranks = 2, .worker_executor = true};
  auto ranks = StartRanks(
      daemon.socket_path(), c, [](JoinedRank&, Link&) -> std::string { return "joined"; },
      OnEither);
  EXPECT_THAT(FinishAll(ranks), Each(AllOf(HasSubstr("FAILED_PRECONDITION"),
                                           HasSubstr("needs NCCL"), HasSubstr(" cuda:0: "))));
}

}  // namespace
}  // namespace epd::testing
