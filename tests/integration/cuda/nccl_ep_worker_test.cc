// Goal: an NCCL EP that exits, aborts or throws takes its worker with it and nothing else: epd serves on,
// the group gets a new epoch, and clients get one typed error and go on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/integration/client_c/harness/rank_process.h"
#include "tests/integration/client_c/harness/running_daemon.h"

namespace epd::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string Worker() {
  return "--worker=" + std::filesystem::absolute("tests/fakes/cuda/nccl_ep_worker").string();
}

// The library ends its process once for each time that the marker is made.
class NcclEpWorker : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    setenv("LD_LIBRARY_PATH", std::filesystem::absolute("tests/fakes/cuda").c_str(), 1);
    setenv("EPD_FAKE_NCCL_EP", GetParam(), 1);
    setenv("EPD_FAKE_NCCL_EP_ONCE", marker_.c_str(), 1);
  }
  void TearDown() override {
    for (const char* name : {"LD_LIBRARY_PATH", "EPD_FAKE_NCCL_EP", "EPD_FAKE_NCCL_EP_ONCE"}) {
      unsetenv(name);
    }
  }
  void EndTheNextCall() { std::ofstream(marker_) << "now"; }
  bool CallHasEnded() const { return access(marker_.c_str(), F_OK) != 0; }

  // How epd's log tells the end.
  std::string End() const {
    return std::string(GetParam()) == "exit" ? "exited with status 1" : "killed by signal 6";
  }

  ScratchFolder folder_;
  const std::string marker_ = folder_.path() + "/marker";
  const ExchangeCase case_{.num_ranks = 2, .num_experts = 4, .worker_executor = true};
};
INSTANTIATE_TEST_SUITE_P(Ways, NcclEpWorker, ::testing::Values("exit", "abort", "throw"));

// Exchanges until one fails and twenty more are good; that failure and the epochs.
std::string ExchangeAcrossOneFailure(JoinedRank& joined, Link& link) {
  const uint64_t epoch = joined.rank->epoch();
  std::string first;
  for (int good = 0; good < 20;) {
    const std::string problem = joined.rank->RunAndCompare(joined.data);
    if (problem.empty()) {
      if (++good == 3 && first.empty()) link.Say("running");
      if (first.empty()) good = std::min(good, 4);
      continue;
    }
    if (!first.empty()) return "a second error: " + problem;
    first = problem;
    good = 0;
  }
  if (joined.rank->epoch() <= epoch) return "no new epoch after: " + first;
  return first;
}

TEST_P(NcclEpWorker, ACrashWhileRowsMoveIsOneTypedErrorAndANewEpoch) {
  RunningDaemon daemon({Worker()});
  const pid_t epd = daemon.pid();
  auto ranks = StartRanks(daemon.socket_path(), case_, ExchangeAcrossOneFailure);
  for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "running");
  const pid_t before = daemon.worker_pid();
  EndTheNextCall();
  for (const std::string& report : FinishAll(ranks)) {
    EXPECT_THAT(report, StartsWith("[epd:ABORTED] group=test"));
    EXPECT_THAT(report, HasSubstr("worker"));
  }
  EXPECT_NE(daemon.worker_pid(), before);
  EXPECT_THAT(daemon.Log(), HasSubstr(End()));
  EXPECT_EQ(daemon.pid(), epd);
}

TEST_P(NcclEpWorker, ACrashWhileAGroupFormsIsSurvivedAndTheGroupForms) {
  RunningDaemon daemon({Worker()});
  EndTheNextCall();
  auto ranks = StartRanks(daemon.socket_path(), case_, [](JoinedRank& joined, Link&) {
    return joined.rank->RunAndCompare(joined.data);
  });
  EXPECT_THAT(FinishAll(ranks), Each(""));
  EXPECT_TRUE(CallHasEnded());
  EXPECT_THAT(daemon.Log(), HasSubstr(End()));
}

TEST(NcclEpWorkerWithoutTheLibrary, IsARefusalWithTheReasonAndNoDeath) {
  RunningDaemon daemon({Worker()});
  const pid_t before = daemon.worker_pid();
  const ExchangeCase c{.num_ranks = 1};
  RankProcess rank([&](Link&) { return JoinedRank(daemon.socket_path(), c, 0).problem; });
  const std::string report = rank.Finish();
  EXPECT_THAT(report, StartsWith("[epd:FAILED_PRECONDITION] group=test"));
  EXPECT_THAT(report, HasSubstr("libnccl_ep.so"));
  EXPECT_EQ(daemon.worker_pid(), before);
  EXPECT_THAT(daemon.Log(), Not(HasSubstr("worker ended")));
}

}  // namespace
}  // namespace epd::testing
