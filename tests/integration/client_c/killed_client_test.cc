// Goal: a client that is killed while it holds a region, or at any moment under load, costs its
// peers one call, which ends within a second and names it, and nobody else anything.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <random>
#include <string>
#include <thread>

#include "tests/integration/client_c/harness/rank_process.h"
#include "tests/integration/client_c/harness/read_trap.h"
#include "tests/integration/client_c/harness/running_daemon.h"
#include "tests/seed/seed.h"

namespace epd::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using Clock = std::chrono::steady_clock;

constexpr int kWarmUp = 3;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string RunOnce(JoinedRank& joined, Link&) { return joined.rank->RunAndCompare(joined.data); }

// Exchanges until one fails; that error.
std::string RunUntilItFails(JoinedRank& joined, Link& link) {
  for (int step = 0;; ++step) {
    if (step == kWarmUp) link.Say("running");
    std::string problem = joined.rank->RunAndCompare(joined.data);
    if (problem.empty()) continue;
    link.Say(problem);
    return "";
  }
}

class KilledClientTest : public ::testing::TestWithParam<bool> {
 protected:
  // Rows of two pages, so that most of a buffer is whole pages.
  ExchangeCase Case(uint32_t num_ranks) const {
    return {.num_ranks = num_ranks,
            .num_experts = 2 * num_ranks,
            .hidden = 2048,
            .worker_executor = GetParam()};
  }

  // Kills rank 2 and checks what the others of `ranks` then say.
  static std::string KillAndExpectTheOthersToNameIt(
      std::vector<std::unique_ptr<RankProcess>>& ranks) {
    const std::string pid = "pid=" + std::to_string(ranks[2]->pid());
    const auto start = Clock::now();
    ranks[2]->Kill();
    std::string last;
    for (const int rank : {0, 1}) {
      last = ranks[rank]->link().Hear();
      EXPECT_LT(SecondsSince(start), 1.0) << last;
      EXPECT_THAT(last, StartsWith("[epd:UNAVAILABLE] group=test epoch="));
      EXPECT_THAT(last, HasSubstr("rank=2 host="));
      EXPECT_THAT(last, HasSubstr(pid));
    }
    for (const int rank : {0, 1}) EXPECT_EQ(ranks[rank]->Finish(), "");
    return last;
  }
};

// Every rank runs; rank 2 then stops where it stages the rows of `buffer`: admitted, not published.
std::string HoldARegion(JoinedRank& joined, Link& link, Bytes RankData::*buffer) {
  if (joined.rank->rank() != 2) return RunUntilItFails(joined, link);
  for (int step = 0; step < kWarmUp; ++step) {
    if (std::string p = joined.rank->RunAndCompare(joined.data); !p.empty()) return p;
  }
  if (!TrapReads(joined.data.*buffer, link)) return "no whole page to trap";
  return "went through the trap: " + joined.rank->RunAndCompare(joined.data);
}

TEST_P(KilledClientTest, OneThatHoldsARegionIsNamedWithinASecondAndTheGroupCanBeUsedAgain) {
  RunningDaemon daemon;
  const ExchangeCase c = Case(3);
  const ExchangeCase bystanders{.num_ranks = 2, .worker_executor = GetParam()};
  const JoinOptions elsewhere{.group = "bystanders"};
  auto others = StartRanks(
      daemon.socket_path(), bystanders,
      [](JoinedRank& joined, Link& link) -> std::string {
        for (int step = 0; step < 10'000; ++step) {
          if (step == kWarmUp) link.Say("running");
          if (std::string p = joined.rank->RunAndCompare(joined.data); !p.empty()) {
            // Rank 1 follows rank 0's end of the load, whichever call it then is in.
            return joined.rank->rank() == 1 && p.find("rank=0") != std::string::npos ? "" : p;
          }
          if (joined.rank->rank() == 0 && link.Hear(0.001) == "end") return "";
        }
        return "the load was not ended";
      },
      elsewhere);
  for (const auto& rank : others) ASSERT_EQ(rank->link().Hear(), "running");
  for (Bytes RankData::*buffer : {&RankData::tokens, &RankData::expert_out}) {
    SCOPED_TRACE(buffer == &RankData::tokens ? "dispatch" : "combine");
    auto ranks = StartRanks(daemon.socket_path(), c, [&](JoinedRank& joined, Link& link) {
      return HoldARegion(joined, link, buffer);
    });
    for (const int rank : {0, 1}) ASSERT_EQ(ranks[rank]->link().Hear(), "running");
    ASSERT_EQ(ranks[2]->link().Hear(), kTrapped);
    KillAndExpectTheOthersToNameIt(ranks);
    auto fresh = StartRanks(daemon.socket_path(), c, RunOnce);
    EXPECT_THAT(FinishAll(fresh), Each("")) << "a fresh set of processes can use the group at once";
  }
  others[0]->link().Say("end");
  EXPECT_THAT(FinishAll(others), Each("")) << "another group notices nothing";
}

TEST_P(KilledClientTest, OneWhoseForkedChildLivesOnIsNamedWithinASecond) {
  RunningDaemon daemon;
  auto ranks = StartRanks(daemon.socket_path(), Case(3), [](JoinedRank& joined, Link& link) {
    if (joined.rank->rank() != 2) return RunUntilItFails(joined, link);
    // As a data loader: it has copies of all descriptors, and never ends by itself.
    const pid_t loader = fork();
    if (loader == 0) {
      while (true) pause();
    }
    link.Say(std::to_string(loader));
    return RunUntilItFails(joined, link);
  });
  const int loader = std::stoi(ranks[2]->link().Hear());
  for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "running");
  KillAndExpectTheOthersToNameIt(ranks);
  EXPECT_EQ(kill(loader, SIGKILL), 0) << "it lived on";
}

TEST_P(KilledClientTest, OneUnderLoadIsNamedWithinASecondWhateverItWasDoing) {
  const uint32_t seed = TestSeed();
  std::mt19937 random(seed);
  RunningDaemon daemon;
  const ExchangeCase c = Case(3);
  for (int round = 0; round < 4; ++round) {
    SCOPED_TRACE("seed " + std::to_string(seed) + " round " + std::to_string(round));
    auto ranks = StartRanks(daemon.socket_path(), c, RunUntilItFails);
    for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "running");
    // Not to wait for anything: the moment of the kill is what varies.
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    KillAndExpectTheOthersToNameIt(ranks);
  }
  auto fresh = StartRanks(daemon.socket_path(), c, RunOnce);
  EXPECT_THAT(FinishAll(fresh), Each(""));
}

// Each tries again in its own time while one is away.
TEST(RetryTest, RanksThatHaveTriedDifferentlyOftenMeetAtOnceWhenTheLostOneIsBack) {
  RunningDaemon daemon;
  const ExchangeCase c{.num_ranks = 3, .num_experts = 6};
  auto ranks = StartRanks(daemon.socket_path(), c, [](JoinedRank& joined, Link& link) {
    const auto pause = std::chrono::milliseconds(joined.rank->rank() == 0 ? 1 : 50);
    std::string problem = joined.rank->RunAndCompare(joined.data);
    link.Say("running " + problem);
    while (problem.empty()) problem = joined.rank->RunAndCompare(joined.data);
    while (!problem.empty()) {
      std::this_thread::sleep_for(pause);
      problem = joined.rank->RunAndCompare(joined.data);
    }
    return problem;
  });
  for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "running ");
  ranks[2]->Kill();
  // What is long is how often rank 0 tries.
  std::this_thread::sleep_for(std::chrono::seconds(1));
  RankProcess back([&](Link&) -> std::string {
    JoinedRank joined(daemon.socket_path(), c, 2);
    if (!joined.problem.empty()) return joined.problem;
    const std::string first = joined.rank->RunAndCompare(joined.data);
    return first.empty() ? "" : joined.rank->RunAndCompare(joined.data);
  });
  const auto start = Clock::now();
  EXPECT_EQ(back.Finish(), "");
  for (const int rank : {0, 1}) EXPECT_EQ(ranks[rank]->Finish(), "");
  EXPECT_LT(SecondsSince(start), 10);
}

INSTANTIATE_TEST_SUITE_P(Executors, KilledClientTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "worker" : "client"; });

}  // namespace
}  // namespace epd::testing
