// Goal: what JAX calls on a GPU - the package's joining and the five handlers of the CUDA platform - gives, over a
// real epd and its worker, what plain loops give; a killed worker is an error at the next look, and then all is well; an epd that
// stops in order and comes back is no error, whatever is in the streams, and where the calls are.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "daemon/backend/child_output.h"
#include "tests/integration/client_c/harness/exchange_cases.h"
#include "tests/integration/cuda/handler_rank.h"
#include "tests/integration/cuda/on_cuda.h"

namespace epd::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class JaxHandlers : public OnFakeGpu, public ::testing::WithParamInterface<bool> {
 protected:
  // Starts a process per rank that joins and then does `body`.
  std::vector<std::unique_ptr<RankProcess>> Start(
      const RunningDaemon& daemon,
      const std::function<std::string(HandlerRank&, uint32_t, Link&)>& body) {
    std::vector<std::unique_ptr<RankProcess>> ranks;
    for (uint32_t rank = 0; rank < case_.num_ranks; ++rank) {
      ranks.push_back(std::make_unique<RankProcess>([&, rank](Link& link) -> std::string {
        // From now on the loader finds it under its own name.
        if (dlopen(FakeGpu::Library().c_str(), RTLD_NOW) == nullptr) return dlerror();
        HandlerRank handlers(daemon.socket_path(), case_, rank,
                             static_cast<int>(rank) % num_devices_);
        return handlers.problem.empty() ? body(handlers, rank, link) : handlers.problem;
      }));
    }
    return ranks;
  }
  RankData DataOf(uint32_t rank, uint32_t number) const {
    ExchangeCase c = case_;
    c.seed = number + 1;
    return MakeExchange(c)[rank];
  }

  const ExchangeCase case_{.num_ranks = 3,
                           .num_experts = 6,
                           .alignment = 4,
                           .routing = Routing::kSomeMissing,
                           .worker_executor = GetParam()};
  int num_devices_ = 1;  // Ranks are on them in turns.
};

// How far the ranks' steps are, and up to which they go; seen by all processes.
struct SharedSteps {
  static SharedSteps& Make() {
    void* const at = mmap(nullptr, sizeof(SharedSteps), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return *new (at) SharedSteps;
  }
  void Reach(uint32_t n) {
    uint32_t before = furthest;
    while (before < n && !furthest.compare_exchange_weak(before, n)) {
    }
  }
  std::atomic<uint32_t> furthest = 0;
  std::atomic<uint32_t> last = UINT32_MAX;
};
INSTANTIATE_TEST_SUITE_P(Executors, JaxHandlers, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "worker" : "client"; });

TEST_P(JaxHandlers, EveryExecutionGivesWhatPlainLoopsGive) {
  RunningDaemon daemon({"--cuda_staging_bytes=256MiB"});
  auto ranks = Start(daemon, [&](HandlerRank& handlers, uint32_t rank, Link&) {
    for (uint32_t n = 0; n < 20; ++n) {
      if (std::string problem = handlers.Step(DataOf(rank, n)); !problem.empty()) {
        return "step " + std::to_string(n) + ": " + problem;
      }
    }
    return std::string();
  });
  EXPECT_THAT(FinishAll(ranks), Each(""));
}

TEST_P(JaxHandlers, AKilledWorkerIsATypedErrorAndTheSameExecutableGoesOn) {
  RunningDaemon daemon({"--cuda_staging_bytes=256MiB"});
  auto ranks = Start(daemon, [&](HandlerRank& handlers, uint32_t rank, Link& link) {
    std::string failed = handlers.Step(DataOf(rank, 0));
    link.Say(failed.empty() ? "running" : failed);
    for (uint32_t n = 1; failed.empty(); ++n) failed = handlers.Step(DataOf(rank, n));
    std::string again = failed;
    // Ranks fail at different steps, and what they begin until all are there again fails, too.
    for (uint32_t n = 0; n < 1000 && !again.empty(); ++n) again = handlers.Step(DataOf(rank, 0));
    return again.empty() ? failed : "never good again: " + again;
  });
  for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "running");
  kill(daemon.worker_pid("cuda:0"), SIGKILL);
  EXPECT_THAT(FinishAll(ranks), Each(AllOf(StartsWith("[epd:UNAVAILABLE] group=handlers/default"),
                                           HasSubstr("worker"))));
}

TEST_P(JaxHandlers, AStopInOrderBetweenStepsIsNoError) {
  RunningDaemon daemon({"--cuda_staging_bytes=256MiB"});
  auto ranks = Start(daemon, [&](HandlerRank& handlers, uint32_t rank, Link& link) {
    std::string problem = handlers.Step(DataOf(rank, 0));
    link.Say(problem.empty() ? "ran" : problem);
    if (link.Hear() != "go") return std::string("no word of the stop");
    for (uint32_t n = 1; problem.empty() && n < 4; ++n) problem = handlers.Step(DataOf(rank, n));
    return problem;
  });
  for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "ran");
  daemon.Restart();
  for (const auto& rank : ranks) rank->link().Say("go");
  EXPECT_THAT(FinishAll(ranks), Each(""));
}

TEST_P(JaxHandlers, WhyAndATraceSayWhereInTheProgramEachCallStands) {
  RunningDaemon daemon({"--cuda_staging_bytes=256MiB"});
  constexpr uint32_t kSteps = 150;  // Of 20 ms or more: for longer than the trace looks.
  constexpr const char* kGroup = "handlers/default/0";
  auto ranks = Start(daemon, [&](HandlerRank& handlers, uint32_t rank, Link& link) {
    std::string problem = handlers.Step(DataOf(rank, 0));
    link.Say(problem.empty() ? "ran" : problem);
    if (link.Hear() != "go") return std::string("no word of the trace");
    for (uint32_t n = 1; problem.empty() && n < kSteps; ++n) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      problem = handlers.Step(DataOf(rank, n));
    }
    link.Say(problem.empty() ? "ran" : problem);
    return link.Hear() == "end" ? problem : "no word of the end";
  });
  for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "ran");
  const auto ask = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "--socket=" + daemon.socket_path());
    const auto said =
        RunChild(std::filesystem::absolute("client/cli/epctl"), words, absl::Seconds(40));
    EXPECT_TRUE(said.ok()) << said.status();
    return said.ok() ? said->output + said->complaints : "";
  };
  const std::string scope = std::string(" scope=") + HandlerRank::kScope + " ";
  for (const auto& rank : ranks) rank->link().Say("go");
  const std::string trace = ask({"trace", kGroup, "--seconds=1"});
  for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "ran");
  const std::string why = ask({"why", kGroup, "--history", "-o", "json"});
  for (const auto& rank : ranks) rank->link().Say("end");
  EXPECT_THAT(FinishAll(ranks), Each(""));
  for (const char* kind :
       {"prepare", "dispatch", "combine", "dispatch_backward", "combine_backward"}) {
    EXPECT_THAT(trace, HasSubstr(kind));
    EXPECT_THAT(why, HasSubstr(kind));
  }
  EXPECT_THAT(trace, HasSubstr(scope));
  EXPECT_THAT(why, HasSubstr(scope));
}

// Several executions are in the streams whenever the ranks are told, and each rank is at another call.
std::string RunUntilLast(HandlerRank& handlers, SharedSteps& steps,
                         const std::function<RankData(uint32_t)>& data) {
  for (uint32_t n = 0; n <= steps.last; ++n) {
    steps.Reach(n);
    if (std::string problem = handlers.Step(data(n), 4); !problem.empty())
      return "step " + std::to_string(n) + ": " + problem;
  }
  return "";
}

// Stops and starts the daemon under them, again and again. What the ranks heard.
std::vector<std::string> FinishAfterStops(RunningDaemon& daemon, SharedSteps& steps,
                                          std::vector<std::unique_ptr<RankProcess>> ranks) {
  for (const uint32_t stop : {5, 30, 60}) {
    EXPECT_TRUE(Eventually(kPatienceSeconds, [&] { return steps.furthest >= stop; }));
    daemon.Restart();
  }
  steps.last = steps.furthest + 10;
  return FinishAll(ranks);
}

TEST_P(JaxHandlers, StopsInOrderUnderStepsAreNoError) {
  RunningDaemon daemon({"--cuda_staging_bytes=256MiB"});
  SharedSteps& steps = SharedSteps::Make();
  auto ranks = Start(daemon, [&](HandlerRank& handlers, uint32_t rank, Link&) {
    return RunUntilLast(handlers, steps, [&](uint32_t n) { return DataOf(rank, n); });
  });
  EXPECT_THAT(FinishAfterStops(daemon, steps, std::move(ranks)), Each(""));
}

TEST_P(JaxHandlers, ReplacementsOfEpdUnderStepsAreNotNoticed) {
  RunningDaemon daemon({"--cuda_staging_bytes=256MiB"});
  SharedSteps& steps = SharedSteps::Make();
  auto ranks = Start(daemon, [&](HandlerRank& handlers, uint32_t rank, Link&) {
    return RunUntilLast(handlers, steps, [&](uint32_t n) { return DataOf(rank, n); });
  });
  ASSERT_TRUE(Eventually(kPatienceSeconds, [&] { return steps.furthest >= 1; }));
  const pid_t worker = daemon.worker_pid("cuda:0");
  ASSERT_GT(worker, 0);
  for (const uint32_t step : {5, 30, 60}) {
    ASSERT_TRUE(Eventually(kPatienceSeconds, [&] { return steps.furthest >= step; }));
    const RunningDaemon::Said said = daemon.Replace(EpdBinary());
    ASSERT_EQ(said.exit_code, 0) << said.text;
  }
  steps.last = steps.furthest + 10;
  EXPECT_THAT(FinishAll(ranks), Each(""));
  EXPECT_EQ(daemon.worker_pid("cuda:0"), worker);
}

class JaxHandlersOnTwoGpus : public JaxHandlers {
 protected:
  JaxHandlersOnTwoGpus() {
    setenv("EPD_FAKE_CUDA", "devices=2", 1);
    num_devices_ = 2;
  }
  ~JaxHandlersOnTwoGpus() override { unsetenv("EPD_FAKE_CUDA"); }
};
// With executor=client all ranks are on one GPU.
INSTANTIATE_TEST_SUITE_P(Executors, JaxHandlersOnTwoGpus, ::testing::Values(true),
                         [](const auto&) { return "worker"; });

// Each GPU's worker sees only its own ranks' streams.
TEST_P(JaxHandlersOnTwoGpus, StopsInOrderUnderStepsAreNoError) {
  RunningDaemon daemon({"--cuda_staging_bytes=256MiB", "--cuda_devices=0,1"});
  SharedSteps& steps = SharedSteps::Make();
  auto ranks = Start(daemon, [&](HandlerRank& handlers, uint32_t rank, Link&) {
    return RunUntilLast(handlers, steps, [&](uint32_t n) { return DataOf(rank, n); });
  });
  EXPECT_THAT(FinishAfterStops(daemon, steps, std::move(ranks)), Each(""));
}

}  // namespace
}  // namespace epd::testing
