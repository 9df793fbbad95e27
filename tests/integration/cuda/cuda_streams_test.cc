// Goal: ranks in processes of their own, whose calls go into streams of a device, do the five operations over a
// real epd and its worker as plain loops do; a killed worker is an error of the step that it ended, and the same
// sites are right again in the new epoch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "tests/integration/client_c/harness/exchange_cases.h"
#include "tests/integration/cuda/on_cuda.h"
#include "tests/integration/cuda/stream_rank.h"
#include "tests/integration/cuda/stream_steps.h"

namespace epd::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using CudaStreams = OnFakeGpu;

std::vector<ExchangeCase> StreamCases(epd_executor executor) {
  ExchangeCase alone{.num_ranks = 1, .num_experts = 2};
  ExchangeCase plain{.alignment = 4, .routing = Routing::kSomeMissing};
  ExchangeCase uneven{.num_ranks = 3,
                      .num_experts = 6,
                      .top_k = 3,
                      .hidden = 40,
                      .dtype = EPD_DTYPE_BFLOAT16,
                      .num_tokens = {5, 0, 9},
                      .expert_owner = {2, 0, 1, 1, 0, 2}};
  ExchangeCase drops{.capacity = 6, .drop = true};
  ExchangeCase wide{.num_ranks = 8, .num_experts = 16, .top_k = 4, .hidden = 24};
  std::vector<ExchangeCase> cases = {alone, plain, uneven, drops, wide};
  for (ExchangeCase& c : cases) c.worker_executor = executor == EPD_EXECUTOR_WORKER;
  return cases;
}

JoinOptions OnCuda(epd_executor executor) {
  JoinOptions options = kOnCuda;
  options.executor = executor;
  return options;
}

constexpr epd_executor kExecutors[] = {EPD_EXECUTOR_WORKER, EPD_EXECUTOR_CLIENT};

std::string NameOf(epd_executor executor) {
  return executor == EPD_EXECUTOR_WORKER ? "worker" : "client";
}

class HowStagingIsShared
    : public CudaStreams,
      public ::testing::WithParamInterface<std::tuple<const char*, epd_executor>> {};
INSTANTIATE_TEST_SUITE_P(Ways, HowStagingIsShared,
                         ::testing::Combine(::testing::Values("vmm", "ipc"),
                                            ::testing::ValuesIn(kExecutors)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + NameOf(std::get<1>(info.param));
                         });

TEST_P(HowStagingIsShared, EveryStepGivesWhatPlainLoopsGive) {
  const auto& [staging, executor] = GetParam();
  RunningDaemon daemon({"--cuda_staging_bytes=256MiB", std::string("--staging=") + staging});
  for (const ExchangeCase& c : StreamCases(executor)) {
    SCOPED_TRACE(c.ToString());
    auto ranks = StartRanks(
        daemon.socket_path(), c,
        [&](JoinedRank& joined, Link&) {
          StreamRank streams(FakeGpu::Library(), joined, c);
          if (!streams.problem.empty()) return streams.problem;
          return RunSteps(streams, c, joined.rank->rank(), 0, 6);
        },
        OnCuda(executor));
    EXPECT_THAT(FinishAll(ranks), Each(""));
  }
  EXPECT_EQ(daemon.Log().find("worker ended"), std::string::npos);
}

class Captured : public CudaStreams, public ::testing::WithParamInterface<epd_executor> {};
INSTANTIATE_TEST_SUITE_P(Executors, Captured, ::testing::ValuesIn(kExecutors),
                         [](const auto& info) { return NameOf(info.param); });

// A thousand, over two ranks that run freely against each other.
TEST_P(Captured, OnceAndReplayedAThousandTimesWithOtherRowsAndRoutes) {
  RunningDaemon daemon({"--cuda_staging_bytes=256MiB"});
  const ExchangeCase c{.num_ranks = 2,
                       .alignment = 4,
                       .routing = Routing::kSomeMissing,
                       .worker_executor = GetParam() == EPD_EXECUTOR_WORKER};
  auto ranks = StartRanks(
      daemon.socket_path(), c,
      [&](JoinedRank& joined, Link&) {
        StreamRank streams(FakeGpu::Library(), joined, c);
        if (!streams.problem.empty()) return streams.problem;
        return ReplaySteps(streams, c, joined.rank->rank(), 0, 1000);
      },
      OnCuda(GetParam()));
  EXPECT_THAT(FinishAll(ranks), Each(""));
}

// Five call sites of a rank for each layer, and three op slots for each site.
class Unrolled : public CudaStreams, public ::testing::WithParamInterface<epd_executor> {};
INSTANTIATE_TEST_SUITE_P(Executors, Unrolled, ::testing::ValuesIn(kExecutors),
                         [](const auto& info) { return NameOf(info.param); });

TEST_P(Unrolled, AStepOfSixtyOneLayersRunsWithTheSlotsThatItTakesAndNoneMore) {
  RunningDaemon daemon({"--cuda_staging_bytes=256MiB", "--slots_per_session=960"});
  const ExchangeCase c{.num_ranks = 2, .worker_executor = GetParam() == EPD_EXECUTOR_WORKER};
  auto ranks = StartRanks(
      daemon.socket_path(), c,
      [&](JoinedRank& joined, Link&) {
        StreamRank streams(FakeGpu::Library(), joined, c, /*device=*/0, /*num_layers=*/61);
        if (!streams.problem.empty()) return streams.problem;
        return RunSteps(streams, c, joined.rank->rank(), 0, 2);
      },
      OnCuda(GetParam()));
  EXPECT_THAT(FinishAll(ranks), Each(""));
}

TEST_P(Unrolled, ALayerTooManyIsRefusedAndTheSettingNamed) {
  RunningDaemon daemon({"--cuda_staging_bytes=256MiB"});
  const ExchangeCase c{.num_ranks = 1, .worker_executor = GetParam() == EPD_EXECUTOR_WORKER};
  for (const int num_layers : {16, 17}) {
    auto ranks = StartRanks(
        daemon.socket_path(), c,
        [&](JoinedRank& joined, Link&) {
          return StreamRank(FakeGpu::Library(), joined, c, /*device=*/0, num_layers).problem;
        },
        OnCuda(GetParam()));
    EXPECT_THAT(
        FinishAll(ranks),
        Each(num_layers == 16 ? ::testing::Matcher<std::string>("")
                              : AllOf(HasSubstr("the 256 op slots of this session are taken "
                                                "(slots_per_session)"),
                                      HasSubstr("raised, to at most 4096"))));
  }
}

// Replays with other routes in each step: an error where any rank needs more slots than there are, and what
// plain loops give where none does.
std::string OverflowNowAndThen(StreamRank& streams, ExchangeCase c, uint32_t rank) {
  std::string problem = streams.Capture();
  int num_over = 0;
  for (uint32_t n = 0; n < 12 && problem.empty(); ++n) {
    c.seed = n + 1;
    const std::vector<RankData> all = MakeExchange(c);
    const bool over = std::any_of(all.begin(), all.end(), [&](const RankData& one) {
      return one.total_recv > static_cast<int32_t>(c.capacity);
    });
    num_over += over ? 1 : 0;
    problem = streams.Replay(all[rank]);
    if (!over) continue;
    // 8: RESOURCE_EXHAUSTED.
    const bool typed = problem.starts_with("8: ") && problem.find("rank=") != std::string::npos &&
                       problem.find("its capacity is 18") != std::string::npos;
    if (!typed) return "no overflow, but '" + problem + "'";
    problem = streams.ReceivedNothing() ? "" : "rows of a failed dispatch";
  }
  if (!problem.empty()) return problem;
  return num_over > 2 && num_over < 10 ? "" : std::to_string(num_over) + " of 12 overflow";
}

TEST_F(CudaStreams, TooManyRowsFailThatReplayOnEveryRank) {
  RunningDaemon daemon({"--cuda_staging_bytes=256MiB"});
  for (const epd_executor executor : kExecutors) {
    SCOPED_TRACE(NameOf(executor));
    const ExchangeCase c{.capacity = 18, .worker_executor = executor == EPD_EXECUTOR_WORKER};
    auto ranks = StartRanks(
        daemon.socket_path(), c,
        [&](JoinedRank& joined, Link&) {
          StreamRank streams(FakeGpu::Library(), joined, c);
          if (!streams.problem.empty()) return streams.problem;
          return OverflowNowAndThen(streams, c, joined.rank->rank());
        },
        OnCuda(executor));
    EXPECT_THAT(FinishAll(ranks), Each(""));
  }
}

// Two steps; the worker dies behind the third one's prepare; the rest of that step.
std::string SurviveAKill(const ExchangeCase& c, JoinedRank& joined, Link& link) {
  StreamRank streams(FakeGpu::Library(), joined, c);
  const uint32_t rank = joined.rank->rank();
  std::string problem = streams.problem;
  if (problem.empty()) problem = RunSteps(streams, c, rank, 0, 2);
  const Before before = {joined.rank->epoch(), streams.formation()};
  if (problem.empty()) {
    streams.Load(DataOf(c, rank, 2));
    problem = streams.Run(0, 1);
  }
  if (!problem.empty()) return "before: " + problem;
  link.Say("prepared");
  if (link.Hear() != "killed") return "no word of the kill";
  const std::string failed = streams.Run(1, StreamRank::kNumCalls);
  if (failed.empty()) return "a plan of the worker that died was taken";
  problem = GoOn(streams, {c, RunSteps}, joined, link, before);
  return problem.empty() ? failed : problem + "; it had failed with " + failed;
}

// A handle of the dead worker's memory is unmapped like a descriptor of it, before the new one is mapped
// at its place.
class KilledWorker : public CudaStreams,
                     public ::testing::WithParamInterface<std::tuple<epd_executor, const char*>> {
 protected:
  // Runs a group until every rank has said `when`, kills the worker, says `then`, and sees to it that all ranks
  // meet in the new formation. What they heard of the kill.
  std::vector<std::string> Kill(
      const std::function<std::string(const ExchangeCase&, JoinedRank&, Link&)>& body,
      const std::string& when, const std::string& then) {
    const auto [executor, staging] = GetParam();
    RunningDaemon daemon({"--cuda_staging_bytes=256MiB", std::string("--staging=") + staging});
    const ExchangeCase c = StreamCases(executor)[1];
    auto ranks = StartRanks(
        daemon.socket_path(), c,
        [&](JoinedRank& joined, Link& link) { return body(c, joined, link); }, OnCuda(executor));
    for (const auto& rank : ranks) EXPECT_EQ(rank->link().Hear(), when);
    kill(daemon.worker_pid("cuda:0"), SIGKILL);
    if (!then.empty()) {
      for (const auto& rank : ranks) rank->link().Say(then);
    }
    for (const auto& rank : ranks) EXPECT_EQ(rank->link().Hear(), "again");
    for (const auto& rank : ranks) rank->link().Say("go");
    return FinishAll(ranks);
  }
};

INSTANTIATE_TEST_SUITE_P(Ways, KilledWorker,
                         ::testing::Combine(::testing::ValuesIn(kExecutors),
                                            ::testing::Values("vmm", "ipc")),
                         [](const auto& info) {
                           return NameOf(std::get<0>(info.param)) + std::get<1>(info.param);
                         });

// 14: UNAVAILABLE.
TEST_P(KilledWorker, FailsTheRestOfAStepThatItHadBegun) {
  EXPECT_THAT(Kill(SurviveAKill, "prepared", "killed"),
              Each(AllOf(StartsWith("14: "), HasSubstr("worker"))));
}

TEST_P(KilledWorker, FailsTheStepsThatAreInTheStreams) {
  const auto body = [](const ExchangeCase& c, JoinedRank& joined, Link& link) {
    return RunUntilKilled({c, RunSteps}, joined, link);
  };
  EXPECT_THAT(Kill(body, "running", ""), Each(AllOf(HasSubstr(": 14: "), HasSubstr("worker"))));
}

// Steps, then steps once it hears a word, in one epoch.
std::string RunAcross(StreamRank& streams, const ExchangeCase& c, JoinedRank& joined, Link& link) {
  const uint64_t epoch = joined.rank->epoch();
  const uint32_t rank = joined.rank->rank();
  std::string problem = streams.problem;
  if (problem.empty()) problem = RunSteps(streams, c, rank, 0, 3);
  link.Say(problem.empty() ? "running" : problem);
  if (link.Hear().empty()) return "no word of the kill";
  if (problem.empty()) problem = RunSteps(streams, c, rank, 3, 6);
  if (!problem.empty()) return problem;
  return joined.rank->epoch() == epoch ? "" : "in another epoch";
}

TEST_F(CudaStreams, OfOneDeviceGoOnWhereAnothersWorkerIsKilled) {
  setenv("EPD_FAKE_CUDA", "devices=2", 1);
  RunningDaemon daemon({"--cuda_staging_bytes=256MiB", "--cuda_devices=0,1"});
  const ExchangeCase c = StreamCases(EPD_EXECUTOR_WORKER)[1];
  JoinOptions second = OnCuda(EPD_EXECUTOR_WORKER);
  second.device = "cuda:1";
  auto ranks = StartRanks(
      daemon.socket_path(), c,
      [&](JoinedRank& joined, Link& link) {
        StreamRank streams(FakeGpu::Library(), joined, c, /*device=*/1);
        return RunAcross(streams, c, joined, link);
      },
      second);
  for (const auto& rank : ranks) EXPECT_EQ(rank->link().Hear(), "running");
  ASSERT_TRUE(Eventually(10, [&] { return daemon.worker_pid("cuda:0") > 0; }));
  const pid_t killed = daemon.worker_pid("cuda:0");
  kill(killed, SIGKILL);
  EXPECT_TRUE(Eventually(10, [&] { return daemon.worker_pid("cuda:0") != killed; }));
  for (const auto& rank : ranks) rank->link().Say("killed");
  EXPECT_THAT(FinishAll(ranks), Each(""));
}

}  // namespace
}  // namespace epd::testing
