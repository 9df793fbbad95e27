// Goal: groups of many real ranks on four nodes, a process each, get from all five operations what plain loops give, and
// lose a rank by one name, as small ones do. Prints what a rank costs. EPD_MANY_RANKS: how many, 1024 unless told;
// EPD_MANY_NODES: on as many nodes instead.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "tests/integration/client_c/harness/node_fleet.h"
#include "tests/integration/client_c/harness/rank_process.h"
#include "tests/integration/client_c/harness/staging_use.h"

namespace epd::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr uint32_t kTokens = 8;
constexpr int kSteps = 5;
constexpr double kPatience = 900;

uint32_t Told(const char* variable, uint32_t otherwise) {
  const char* told = std::getenv(variable);
  return told == nullptr ? otherwise : static_cast<uint32_t>(std::strtoul(told, nullptr, 10));
}

ExchangeCase Case() {
  const uint32_t num_ranks = Told("EPD_MANY_RANKS", 1024);
  return {.num_ranks = num_ranks,
          .num_experts = num_ranks,
          .top_k = 2,
          .hidden = 64,
          .capacity = 128,
          .num_tokens = std::vector<uint32_t>(num_ranks, kTokens)};
}

JoinOptions Patient() {
  JoinOptions options;
  options.form_ms = static_cast<int64_t>(kPatience) * 1000;
  options.absent_ms = options.form_ms;
  options.undecided_ms = options.form_ms / 2;
  return options;
}

double Seconds(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

// What the process alone has, and its share of what it maps with others, in KiB.
uint64_t MemoryOf(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/smaps_rollup");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("Pss:", 0) == 0) return std::stoull(line.substr(4));
  }
  return 0;
}

class ManyRanksOfNodes : public ::testing::Test {
 protected:
  // Of a joined group, all of whose ranks have run.
  void PrintWhatARankCosts(const std::vector<std::unique_ptr<RankProcess>>& ranks);

  const int num_nodes_ = static_cast<int>(Told("EPD_MANY_NODES", 4));
  NodeFleet fleet_{num_nodes_};
  const ExchangeCase case_ = Case();
};

void ManyRanksOfNodes::PrintWhatARankCosts(const std::vector<std::unique_ptr<RankProcess>>& ranks) {
  uint64_t of_ranks = 0, of_workers = 0, of_epds = 0;
  for (const auto& rank : ranks) of_ranks += MemoryOf(rank->pid());
  for (int node = 0; node < num_nodes_; ++node) {
    of_workers += MemoryOf(fleet_.node(node).worker_pid());
    of_epds += MemoryOf(fleet_.node(node).pid());
  }
  std::printf(
      "memory of a rank: %.0f KiB, and its share of %d workers %.0f KiB, of %d epds %.0f KiB\n",
      static_cast<double>(of_ranks) / case_.num_ranks, num_nodes_,
      static_cast<double>(of_workers) / case_.num_ranks, num_nodes_,
      static_cast<double>(of_epds) / case_.num_ranks);
  const StagingUse of_rank = StagingUseOf(ranks[0]->pid());
  const StagingUse of_worker = StagingUseOf(fleet_.node(0).worker_pid());
  const StagingUse of_epd = StagingUseOf(fleet_.node(0).pid());
  std::printf(
      "staging: a rank maps %zu arenas; a worker has %zu, with %zu descriptors and %zu mappings; "
      "epd keeps %zu descriptors and %zu mappings\n",
      of_rank.num_mappings, of_worker.num_memfds, of_worker.num_descriptors, of_worker.num_mappings,
      of_epd.num_descriptors, of_epd.num_mappings);
}

TEST_F(ManyRanksOfNodes, EveryRankGetsWhatPlainLoopsGive) {
  const auto started = Clock::now();
  auto ranks = fleet_.StartRanks(
      case_,
      [](JoinedRank& joined, Link& link) -> std::string {
        link.Say("joined");
        link.Hear(kPatience);
        std::string times;
        for (int step = 0; step < kSteps; ++step) {
          const auto begun = Clock::now();
          if (std::string p = joined.rank->RunAndCompare(joined.data); !p.empty()) return p;
          times += std::to_string(Seconds(begun)) + " ";
        }
        link.Say("ran " + times);
        link.Hear(kPatience);
        return joined.RunAndLeave(0);
      },
      Patient());
  for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(kPatience), "joined");
  std::printf("%u ranks on %d nodes joined after %.1f s\n", case_.num_ranks, num_nodes_,
              Seconds(started));
  for (const auto& rank : ranks) rank->link().Say("go");
  std::vector<double> slowest(kSteps);
  for (const auto& rank : ranks) {
    std::istringstream said(rank->link().Hear(kPatience));
    std::string word;
    said >> word;
    ASSERT_EQ(word, "ran") << said.str();
    for (double& step : slowest) {
      double seconds = 0;
      said >> seconds;
      step = std::max(step, seconds);
    }
  }
  std::sort(slowest.begin(), slowest.end());
  std::printf(
      "five operations of %u tokens: %.3f s for the slowest rank, the middle one of %d steps\n",
      kTokens, slowest[kSteps / 2], kSteps);
  PrintWhatARankCosts(ranks);
  for (const auto& rank : ranks) rank->link().Say("end");
  EXPECT_THAT(FinishAll(ranks, kPatience), Each(""));
}

TEST_F(ManyRanksOfNodes, AKilledRankHasOneNameOnAllOthers) {
  const size_t killed = case_.num_ranks - 2;
  auto ranks = fleet_.StartRanks(
      case_,
      [](JoinedRank& joined, Link& link) {
        std::string problem = joined.rank->RunAndCompare(joined.data);
        link.Say(problem.empty() ? "ran" : problem);
        while (problem.empty()) problem = joined.rank->RunAndCompare(joined.data);
        return problem;
      },
      Patient());
  for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(kPatience), "ran");
  const auto since = Clock::now();
  ranks[killed]->Kill();
  double first = 0;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i == killed) continue;
    const std::string said = ranks[i]->Finish(kPatience);
    if (first == 0) first = Seconds(since);
    EXPECT_THAT(said,
                AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("rank=" + std::to_string(killed) + " ")))
        << "rank " << i;
  }
  std::printf("the first rank was told after %.2f s, all after %.2f s\n", first, Seconds(since));
}

}  // namespace
}  // namespace epd::testing
