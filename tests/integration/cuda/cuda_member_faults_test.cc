// Goal: whatever happens to one device, one worker or one rank of a group whose ranks read out of the memory of several GPUs of a
// node, every rank hears it with a typed error, and the group goes on in a new epoch, still directly; groups on other devices, and
// calls in streams, are as on one GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/integration/client_c/harness/exchange_cases.h"
#include "tests/integration/client_c/harness/rank_process.h"
#include "tests/integration/client_c/harness/running_daemon.h"
#include "tests/integration/cuda/on_cuda.h"
#include "tests/integration/cuda/stream_rank.h"
#include "tests/integration/cuda/stream_steps.h"

namespace epd::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const auto kTyped =
    AnyOf(StartsWith("[epd:ABORTED] group=gpu"), StartsWith("[epd:UNAVAILABLE] group=gpu"));

class MemberFaults : public OnFakeGpu {
 protected:
  ~MemberFaults() override { EXPECT_EQ(gpu_.CountNcclMarks('r'), 0) << "nothing goes by NCCL"; }

  void Use(uint32_t num_devices) {
    num_devices_ = num_devices;
    setenv("EPD_FAKE_CUDA", ("devices=" + std::to_string(num_devices)).c_str(), 1);
  }
  // epd serves all devices.
  std::vector<std::string> Flags() const {
    std::string all = "0";
    for (uint32_t i = 1; i < num_devices_; ++i) all += "," + std::to_string(i);
    return {"--cuda_staging_bytes=256MiB", "--cuda_devices=" + all};
  }
  // Two ranks on each device. They fail, and go on.
  std::vector<std::unique_ptr<RankProcess>> Start(const RunningDaemon& daemon,
                                                  bool in_new_epoch = true) {
    auto ranks = StartRanks(daemon.socket_path(), Case(), FailAndRecover(in_new_epoch),
                            [this](uint32_t rank) { return OnOneOf(num_devices_, rank); });
    for (const auto& rank : ranks) EXPECT_EQ(rank->link().Hear(), "ran");
    return ranks;
  }
  ExchangeCase Case() const {
    return {
        .num_ranks = 2 * num_devices_, .num_experts = 4 * num_devices_, .worker_executor = true};
  }
  std::vector<std::string> Strike(const RunningDaemon& daemon, const std::string& what) {
    auto ranks = Start(daemon);
    gpu_.Tell(what);
    EXPECT_TRUE(gpu_.Heard(what));
    return FinishAll(ranks);
  }

  uint32_t num_devices_ = 0;
};

TEST_F(MemberFaults, AnIllegalAccessOnOneDeviceIsATypedErrorOnEveryRank) {
  Use(2);
  RunningDaemon daemon(Flags());
  EXPECT_THAT(Strike(daemon, "poison.1"), Each(kTyped));
  EXPECT_THAT(daemon.Log(), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
}

TEST_F(MemberFaults, StreamsOfOneDeviceThatNeverCompleteEndItsWorkerAlone) {
  Use(2);
  std::vector<std::string> flags = Flags();
  flags.emplace_back("--cuda_limit=5s");
  RunningDaemon daemon(flags);
  ASSERT_TRUE(Eventually(
      10, [&] { return daemon.worker_pid("cuda:0") > 0 && daemon.worker_pid("cuda:1") > 0; }));
  const pid_t other = daemon.worker_pid("cuda:0");
  const pid_t stalled = daemon.worker_pid("cuda:1");
  EXPECT_THAT(Strike(daemon, "stall.1"), Each(kTyped));
  EXPECT_EQ(daemon.worker_pid("cuda:0"), other);
  EXPECT_NE(daemon.worker_pid("cuda:1"), stalled);
}

TEST_F(MemberFaults, AKilledRankIsNamedToTheOthersAndReplaced) {
  Use(2);
  RunningDaemon daemon(Flags());
  auto ranks = Start(daemon, /*in_new_epoch=*/false);
  const pid_t workers[] = {daemon.worker_pid("cuda:0"), daemon.worker_pid("cuda:1")};
  constexpr uint32_t kKilled = 1;
  const std::string pid = "pid=" + std::to_string(ranks[kKilled]->pid());
  ranks[kKilled]->Kill();
  RankProcess back([&](Link&) -> std::string {
    JoinedRank joined(daemon.socket_path(), Case(), kKilled, OnOneOf(num_devices_, kKilled));
    std::string problem = joined.problem.empty() ? "nothing ran" : joined.problem;
    for (const absl::Time until = absl::Now() + absl::Minutes(1);
         joined.problem.empty() && !problem.empty() && absl::Now() < until;) {
      problem = joined.rank->RunAndCompare(joined.data);
    }
    return problem;
  });
  for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
    if (rank == kKilled) continue;
    EXPECT_THAT(ranks[rank]->Finish(), AllOf(StartsWith("[epd:UNAVAILABLE] group=gpu"),
                                             HasSubstr("rank=1 host="), HasSubstr(pid)));
  }
  EXPECT_EQ(back.Finish(), "");
  EXPECT_EQ(daemon.worker_pid("cuda:0"), workers[0]);
  EXPECT_EQ(daemon.worker_pid("cuda:1"), workers[1]);
}

TEST_F(MemberFaults, OneKilledWorkerOfFourIsATypedErrorOnEveryRank) {
  Use(4);
  RunningDaemon daemon(Flags());
  auto ranks = Start(daemon);
  kill(daemon.worker_pid("cuda:2"), SIGKILL);
  EXPECT_THAT(FinishAll(ranks), Each(kTyped));
}

TEST_F(MemberFaults, TwoGroupsMayShareANodesDevicesInAnyOrder) {
  Use(4);
  RunningDaemon daemon(Flags());
  ExchangeCase c = CasesOfNodes(4)[0];
  c.worker_executor = true;
  const auto on = [&](const char* group, uint32_t first, uint32_t second) {
    return StartRanks(daemon.socket_path(), c, RunTwice, [=](uint32_t rank) {
      JoinOptions options = kOnCuda;
      options.group = group;
      options.device = "cuda:" + std::to_string(rank % 2 == 0 ? first : second);
      return options;
    });
  };
  auto odd = on("odd", 3, 1);
  auto even = on("even", 0, 2);
  EXPECT_THAT(FinishAll(odd), Each(""));
  EXPECT_THAT(FinishAll(even), Each(""));
}

TEST_F(MemberFaults, CallsInStreamsAreCapturedAndReplayedAcrossDevices) {
  Use(2);
  RunningDaemon daemon(Flags());
  const ExchangeCase c{
      .num_ranks = 2, .alignment = 4, .routing = Routing::kSomeMissing, .worker_executor = true};
  auto ranks = StartRanks(
      daemon.socket_path(), c,
      [&](JoinedRank& joined, Link&) {
        const uint32_t rank = joined.rank->rank();
        StreamRank streams(FakeGpu::Library(), joined, c, static_cast<int>(rank));
        if (!streams.problem.empty()) return streams.problem;
        return ReplaySteps(streams, c, rank, 0, 100);
      },
      OnEither);
  EXPECT_THAT(FinishAll(ranks), Each(""));
  EXPECT_THAT(daemon.Log(), HasSubstr("rows go directly between the node's devices"));
}

}  // namespace
}  // namespace epd::testing
