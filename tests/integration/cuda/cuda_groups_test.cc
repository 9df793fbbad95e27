// Goal: groups with backend=cuda do the five operations over real processes and a fake driver, with the
// bits of the cpu backend; whatever a device does, every rank hears it with a typed error and goes on in a
// new epoch; no call ever breaks a driver's rules of order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <csignal>
#include <filesystem>
#include <string>

#include "daemon/backend/child_output.h"
#include "kernels/cuda/driver/driver_table.h"
#include "tests/integration/client_c/harness/exchange_cases.h"
#include "tests/integration/client_c/harness/rank_process.h"
#include "tests/integration/client_c/harness/running_daemon.h"
#include "tests/integration/cuda/on_cuda.h"

namespace epd::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

using CudaGroups = OnFakeGpu;

const JoinOptions kOnCpu = {.group = "cpu"};
const JoinOptions kOnOtherGpu = {.group = "other", .backend = "cuda", .device = "cuda:1"};

TEST_F(CudaGroups, EveryRankGetsWhatPlainLoopsGive) {
  RunningDaemon daemon({"--cuda_staging_bytes=2GiB"});
  for (ExchangeCase c : ExchangeCases()) {
    c.worker_executor = true;
    SCOPED_TRACE(c.ToString());
    auto ranks = StartRanks(daemon.socket_path(), c, RunTwice, kOnCuda);
    EXPECT_THAT(FinishAll(ranks), Each(""));
  }
  EXPECT_EQ(daemon.Log().find("worker ended"), std::string::npos);
}

TEST_F(CudaGroups, AnyExpertTableGivesWhatPlainLoopsGive) {
  RunningDaemon daemon({"--cuda_staging_bytes=2GiB", "--max_num_sms=24"});
  for (ExchangeCase c : ExpertTableCases()) {
    c.worker_executor = true;
    SCOPED_TRACE(c.ToString());
    auto ranks = StartRanks(daemon.socket_path(), c, RunTwice, kOnCuda);
    EXPECT_THAT(FinishAll(ranks), Each(""));
  }
  EXPECT_EQ(daemon.Log().find("worker ended"), std::string::npos);
}

// Rows of 64 bytes. Workers have epd's environment.
TEST_F(CudaGroups, RowsMoveByBulkCopiesWhereEpdsEnvironmentSaysSo) {
  const ExchangeCase c{.num_ranks = 2, .worker_executor = true};
  for (const bool in_bulk : {false, true}) {
    if (in_bulk) setenv("EPD_CUDA_BULK_ROW_BYTES", "16", /*replace=*/1);
    RunningDaemon daemon({"--cuda_staging_bytes=256MiB"});
    unsetenv("EPD_CUDA_BULK_ROW_BYTES");
    auto ranks = StartRanks(daemon.socket_path(), c, RunTwice, kOnCuda);
    EXPECT_THAT(FinishAll(ranks), Each(""));
    EXPECT_EQ(gpu_.Launched().find("_bulk") != std::string::npos, in_bulk);
  }
}

TEST_F(CudaGroups, RanksThatNameTheirGpuAreServedThereUnlessTheyAskForTheCpu) {
  RunningDaemon daemon({"--cuda_staging_bytes=256MiB"});
  const ExchangeCase c{.num_ranks = 2, .worker_executor = true};
  auto on_cpu = StartRanks(daemon.socket_path(), c, RunTwice,
                           {.group = "asks", .backend = "cpu", .device = "cuda:0"});
  EXPECT_THAT(FinishAll(on_cpu), Each(""));
  EXPECT_EQ(gpu_.Launched(), "");
  auto open = StartRanks(daemon.socket_path(), c, RunTwice, {.group = "open", .device = "cuda:0"});
  EXPECT_THAT(FinishAll(open), Each(""));
  EXPECT_NE(gpu_.Launched(), "");
}

TEST_F(CudaGroups, ARankThatNamesNoGpuIsToldOfThoseThatDo) {
  RunningDaemon daemon({"--cuda_staging_bytes=256MiB"});
  const ExchangeCase c{.num_ranks = 2, .worker_executor = true};
  auto ranks = StartRanks(daemon.socket_path(), c, RunTwice, [](uint32_t rank) {
    return JoinOptions{.group = "mixed", .device = rank == 0 ? "cuda:0" : ""};
  });
  EXPECT_THAT(
      FinishAll(ranks),
      Each(AllOf(
          HasSubstr("backend: got auto (the CPU's: no rank names a GPU), expected cuda (ranks 1)"),
          HasSubstr("EPD-1001"))));
}

TEST_F(CudaGroups, AGpuThatCannotBeUsedIsNoReasonForTheCpuButAnError) {
  RunningDaemon daemon({"--cuda_devices=none"});
  const ExchangeCase c{.num_ranks = 1, .num_experts = 2, .worker_executor = true};
  auto ranks = StartRanks(daemon.socket_path(), c, RunTwice, {.group = "open", .device = "cuda:0"});
  EXPECT_THAT(FinishAll(ranks), Each(AllOf(HasSubstr("backend=cuda: cannot be served here"),
                                           HasSubstr("ask for backend=cpu"))));
}

class CudaFaults : public CudaGroups {
 protected:
  // Runs a group on cuda:0 and one on each of `untouched`, lets `strike` happen, and returns what the
  // ranks of the first heard. The others hear nothing, and go on in their epoch, until they are told
  // to stop.
  std::vector<std::string> Strike(RunningDaemon& daemon, const std::function<void()>& strike,
                                  const std::vector<JoinOptions>& untouched = {kOnCpu}) {
    const ExchangeCase c{.num_ranks = 3, .num_experts = 6, .worker_executor = true};
    auto ranks = StartRanks(daemon.socket_path(), c, FailAndRecover(), kOnCuda);
    std::vector<std::unique_ptr<RankProcess>> others;
    for (const JoinOptions& options : untouched) {
      for (auto& rank : StartRanks(daemon.socket_path(), c, RunUntilTold, options)) {
        others.push_back(std::move(rank));
      }
    }
    for (const auto& rank : ranks) EXPECT_EQ(rank->link().Hear(), "ran");
    for (const auto& rank : others) EXPECT_EQ(rank->link().Hear(), "ran");
    strike();
    std::vector<std::string> heard = FinishAll(ranks);
    for (const auto& rank : others) rank->link().Say("stop");
    EXPECT_THAT(FinishAll(others), Each(""));
    return heard;
  }
};

TEST_F(CudaFaults, AnIllegalAccessIsATypedErrorOnEveryRankAndTheGroupGoesOnInANewEpoch) {
  RunningDaemon daemon({"--cuda_staging_bytes=256MiB"});
  const auto heard = Strike(daemon, [&] {
    gpu_.Tell("poison");
    EXPECT_TRUE(gpu_.Heard("poison"));
  });
  EXPECT_THAT(heard, Each(StartsWith("[epd:UNAVAILABLE] group=gpu")));
  EXPECT_THAT(daemon.Log(), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
}

TEST_F(CudaFaults, AStreamThatNeverCompletesEndsTheWorkerAtItsDeadline) {
  RunningDaemon daemon({"--cuda_staging_bytes=256MiB", "--cuda_limit=5s"});
  const auto heard = Strike(daemon, [&] {
    gpu_.Tell("stall");
    EXPECT_TRUE(gpu_.Heard("stall"));
  });
  EXPECT_THAT(heard,
              Each(AllOf(StartsWith("[epd:UNAVAILABLE] group=gpu"), HasSubstr("within 5s"))));
}

TEST_F(CudaFaults, AKilledWorkerIsATypedErrorOnEveryRankAndTheGroupGoesOnInANewEpoch) {
  RunningDaemon daemon({"--cuda_staging_bytes=256MiB"});
  const auto heard = Strike(daemon, [&] { kill(daemon.worker_pid("cuda:0"), SIGKILL); });
  EXPECT_THAT(heard, Each(StartsWith("[epd:UNAVAILABLE] group=gpu")));
}

// Two GPUs, a worker each.
class TwoGpus : public CudaFaults {
 protected:
  TwoGpus() { setenv("EPD_FAKE_CUDA", "devices=2", 1); }
  const std::vector<std::string> flags_ = {"--cuda_staging_bytes=256MiB", "--cuda_devices=0,1"};
};

TEST_F(TwoGpus, AKilledWorkerLeavesEpdServingAndTheOtherDevicesGroupsRunning) {
  RunningDaemon daemon(flags_);
  ASSERT_TRUE(Eventually(10, [&] { return daemon.worker_pid("cuda:1") > 0; }));
  const pid_t other = daemon.worker_pid("cuda:1");
  const pid_t cpu = daemon.worker_pid();
  const auto heard =
      Strike(daemon, [&] { kill(daemon.worker_pid("cuda:0"), SIGKILL); }, {kOnCpu, kOnOtherGpu});
  EXPECT_THAT(heard, Each(AllOf(StartsWith("[epd:UNAVAILABLE] group=gpu"), HasSubstr("worker"))));
  EXPECT_EQ(daemon.worker_pid("cuda:1"), other);
  EXPECT_EQ(daemon.worker_pid(), cpu);
}

TEST_F(TwoGpus, AnIllegalAccessOnOneLeavesTheOtherDevicesGroupsRunning) {
  RunningDaemon daemon(flags_);
  const auto heard = Strike(daemon,
                            [&] {
                              gpu_.Tell("poison.0");
                              EXPECT_TRUE(gpu_.Heard("poison.0"));
                            },
                            {kOnCpu, kOnOtherGpu});
  EXPECT_THAT(heard, Each(StartsWith("[epd:UNAVAILABLE] group=gpu")));
  EXPECT_THAT(daemon.Log(), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
}

TEST_F(TwoGpus, AWorkerMakesAContextOnItsOwnAlone) {
  RunningDaemon daemon({"--cuda_staging_bytes=256MiB", "--cuda_devices=1"});
  const ExchangeCase c{.num_ranks = 2, .worker_executor = true};
  JoinOptions second = kOnCuda;
  second.device = "cuda:1";
  auto ranks = StartRanks(daemon.socket_path(), c, RunTwice, second);
  EXPECT_THAT(FinishAll(ranks), Each(""));
  EXPECT_THAT(gpu_.Contexts(), AllOf(HasSubstr("epd-worker 1"), Not(HasSubstr("epd-worker 0"))));
}

TEST_F(TwoGpus, OneSessionMayBeInGroupsOfSeveralWorkers) {
  RunningDaemon daemon(flags_);
  const ExchangeCase c{.num_ranks = 2, .worker_executor = true};
  auto ranks = StartRanks(
      daemon.socket_path(), c,
      [&](JoinedRank& joined, Link&) -> std::string {
        for (const JoinOptions& options : {kOnOtherGpu, kOnCpu}) {
          ClientRank more(joined.client, c, joined.rank->rank());
          if (const Result r = more.Join(options); !r.ok()) return r.message;
          for (ClientRank* rank : {&more, joined.rank.get(), &more}) {
            if (std::string p = rank->RunAndCompare(joined.data); !p.empty()) return p;
          }
        }
        return "";
      },
      kOnCuda);
  EXPECT_THAT(FinishAll(ranks), Each(""));
}

std::string JoinProblem(const std::string& socket, const ExchangeCase& c,
                        const JoinOptions& options = kOnCuda) {
  auto ranks = StartRanks(
      socket, c, [](JoinedRank&, Link&) -> std::string { return "joined"; }, options);
  return FinishAll(ranks)[0];
}

TEST_F(CudaGroups, AGroupThatDoesNotFitIsRefusedAndAnotherOneIsServed) {
  RunningDaemon daemon({"--cuda_staging_bytes=8MiB"});
  const ExchangeCase large{.num_ranks = 1, .num_experts = 2, .hidden = 2048, .num_tokens = {256}};
  EXPECT_THAT(JoinProblem(daemon.socket_path(), large),
              AllOf(HasSubstr("RESOURCE_EXHAUSTED"), HasSubstr("cuda_staging_bytes")));
  const ExchangeCase small{.num_ranks = 2, .worker_executor = true};
  auto ranks = StartRanks(daemon.socket_path(), small, RunTwice, kOnCuda);
  EXPECT_THAT(FinishAll(ranks), Each(""));
}

TEST_F(CudaGroups, WhereThereIsNoDriverOrItIsNotWantedTheReasonIsSaid) {
  const ExchangeCase c{.num_ranks = 1, .num_experts = 2};
  {
    RunningDaemon daemon({"--cuda_staging_bytes=0"});
    EXPECT_THAT(JoinProblem(daemon.socket_path(), c),
                AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("cuda_staging_bytes=0")));
  }
  setenv("EPD_FAKE_CUDA", "vmm=0", 1);
  {
    RunningDaemon daemon({"--staging=vmm", "--cuda_staging_bytes=64MiB"});
    EXPECT_THAT(JoinProblem(daemon.socket_path(), c),
                AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("staging=vmm does not work")));
  }
  unsetenv("LD_LIBRARY_PATH");
  RunningDaemon daemon;
  EXPECT_THAT(JoinProblem(daemon.socket_path(), c),
              AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("libcuda.so.1")));
}

TEST_F(TwoGpus, ARankThatNamesNoGpuOrOneThatIsNotServedIsToldWhichThereAre) {
  RunningDaemon daemon(flags_);
  const ExchangeCase c{.num_ranks = 1, .num_experts = 2};
  EXPECT_THAT(JoinProblem(daemon.socket_path(), c, {.group = "gpu", .backend = "cuda"}),
              AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("cuda:0, cuda:1 are served here")));
  EXPECT_THAT(
      JoinProblem(daemon.socket_path(), c, {.group = "gpu", .backend = "cuda", .device = "cuda:2"}),
      AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("only cuda:0, cuda:1")));
}

TEST_F(CudaGroups, EitherExecutorMayBeAskedFor) {
  RunningDaemon daemon({"--cuda_staging_bytes=256MiB"});
  const auto create = [&](const std::string& name, const std::string& executor) {
    const auto said =
        RunChild(std::filesystem::absolute("client/cli/epctl"),
                 {"--socket=" + daemon.socket_path(), "create", name, "--ranks=2", "--experts=4",
                  "--max-tokens-per-rank=8", "--recv-capacity-per-rank=32", "--hidden=16",
                  "--backend=cuda", "--executor=" + executor},
                 absl::Seconds(40));
    EXPECT_TRUE(said.ok()) << said.status();
    return said.ok() ? said->end + said->complaints : "";
  };
  EXPECT_EQ(create("own", "client"), "");
  EXPECT_EQ(create("auto", "auto"), "");
  EXPECT_EQ(create("worker", "worker"), "");
}

TEST_F(CudaGroups, StatusAndMemorySayWhatIsReservedAndWhatIsLeftForClients) {
  setenv("EPD_FAKE_CUDA", "vmm=0", 1);
  RunningDaemon daemon({"--cuda_staging_bytes=1GiB", "--cuda_devices=0"});
  ASSERT_TRUE(Eventually(10, [&] { return daemon.worker_pid("cuda:0") > 0; }));
  const std::string epctl = std::filesystem::absolute("client/cli/epctl");
  for (const char* command : {"status", "memory"}) {
    const auto json = RunChild(epctl, {"--socket=" + daemon.socket_path(), command, "-o", "json"},
                               absl::Seconds(40));
    ASSERT_TRUE(json.ok()) << json.status();
    EXPECT_THAT(json->output, AllOf(HasSubstr("\"gpu\""), HasSubstr("Fake GPU 0"),
                                    HasSubstr("\"sharing\": \"ipc\""),
                                    HasSubstr("\"client_memory_fraction\": 0.74")));
    const auto table =
        RunChild(epctl, {"--socket=" + daemon.socket_path(), command}, absl::Seconds(40));
    ASSERT_TRUE(table.ok()) << table.status();
    EXPECT_THAT(table->output, HasSubstr("XLA_PYTHON_CLIENT_MEM_FRACTION of one client: 0.74"));
  }
}

// The guard of all tests above: what breaks a rule is written down.
TEST_F(CudaGroups, AnAllocationBehindAPendingWaitIsWrittenDown) {
  const cuda::LoadedDriver driver = cuda::LoadDriver(FakeGpu::Library());
  ASSERT_TRUE(driver.ok()) << driver.problem;
  const cuda::DriverTable& t = driver.table;
  ASSERT_EQ(t.init(0), cuda::kSuccess);
  cuda::Context context = nullptr;
  ASSERT_EQ(t.primary_context_retain(&context, 0), cuda::kSuccess);
  ASSERT_EQ(t.context_set_current(context), cuda::kSuccess);
  cuda::Stream stream = nullptr;
  ASSERT_EQ(t.stream_create(&stream, cuda::kStreamNonBlocking), cuda::kSuccess);
  static uint32_t word = 0;
  cuda::BatchedOperation wait = {};
  wait.value = {cuda::kWaitValue32, reinterpret_cast<cuda::DevicePointer>(&word), 1,
                cuda::kWaitGreaterOrEqual, 0};
  ASSERT_EQ(t.stream_batch(stream, 1, &wait, 0), cuda::kSuccess);
  cuda::DevicePointer memory = 0;
  t.memory_allocate(&memory, 4096);
  EXPECT_THAT(gpu_.Violations(), HasSubstr("cuMemAlloc: behind 1 pending wait"));
  gpu_.Forget();
  word = 1;
}

}  // namespace
}  // namespace epd::testing
