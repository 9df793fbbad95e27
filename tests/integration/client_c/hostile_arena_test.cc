// Goal: a rank that writes over its own staging while its peers and the worker read it hurts nobody:
// each of their calls ends with the right rows or with DATA_LOSS, nothing crashes, and once it
// stops everything is as before.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <random>
#include <string>
#include <thread>

#include "client/c/status.h"
#include "tests/integration/client_c/harness/rank_process.h"
#include "tests/integration/client_c/harness/running_daemon.h"
#include "tests/seed/seed.h"

namespace epd::testing {
namespace {

using client::Code;
using ::testing::Each;

constexpr uint32_t kHostile = 2;
constexpr int kRounds = 400;
// Where the regions of small operations lie; the rest of an arena has no memory.
constexpr size_t kBytes = size_t{1} << 16;

// This process's own arena: the one mapping of staging that it may write.
uint32_t* OwnArena() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("epd-staging") == std::string::npos || line.find(" rw-s ") == std::string::npos)
      continue;
    return reinterpret_cast<uint32_t*>(std::stoull(line, nullptr, 16));
  }
  return nullptr;
}

// Writes random words over the arena while it lives: all of it, or one here and there.
class Scribbler {
 public:
  Scribbler(uint32_t* words, uint64_t seed) : thread_([this, words, seed] { Run(words, seed); }) {}
  ~Scribbler() {
    stop_ = true;
    thread_.join();
  }

 private:
  // Races with what the rank itself reads, as it is meant to.
  __attribute__((noinline, no_sanitize("thread"))) static void Store(uint32_t* word,
                                                                     uint32_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
  }
  void Run(uint32_t* words, uint64_t seed) {
    std::mt19937 random(static_cast<uint32_t>(seed));
    constexpr size_t kWords = kBytes / sizeof(uint32_t);
    while (!stop_) {
      const size_t num = random() % 8 == 0 ? kWords : 16;
      for (size_t i = 0; i < num; ++i) {
        Store(&words[num == kWords ? i : random() % kWords], static_cast<uint32_t>(random()));
      }
    }
  }

  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

// What a rank saw of its calls.
struct Tally {
  int good = 0;
  int lost = 0;
  std::string problem;

  void Add(const Result& result, const std::string& difference) {
    good += result.ok();
    lost += result.code == static_cast<int>(Code::kDataLoss);
    if (!problem.empty()) return;
    if (result.ok()) {
      problem = difference;
    } else if (result.code != static_cast<int>(Code::kDataLoss)) {
      problem = result.message;
    }
  }
};

// All five operations whatever the ones before gave, so that the ranks' calls stay in step.
void RunAll(ClientRank& rank, const RankData& data, Tally& tally) {
  const auto differs = [](bool equal, const char* what) {
    return equal ? std::string() : std::string(what) + " is wrong, but the call was good";
  };
  Result result = rank.Prepare(data);
  tally.Add(result, differs(rank.token_counts == data.token_counts, "prepare"));
  result = rank.Dispatch(data);
  tally.Add(result,
            differs(rank.recv_tokens == data.recv_tokens && rank.recv_weights == data.recv_weights,
                    "dispatch"));
  result = rank.Combine(data);
  tally.Add(result, differs(rank.tokens == data.combined, "combine"));
  result = rank.DispatchBackward(data);
  tally.Add(result, differs(rank.tokens == data.combined && rank.weights == data.weight_grads,
                            "dispatch backward"));
  result = rank.CombineBackward(data);
  tally.Add(result, differs(rank.recv_tokens == data.recv_tokens, "combine backward"));
}

class HostileArenaTest : public ::testing::TestWithParam<bool> {
 protected:
  // Rows that go without the worker are hardly ever caught while they stand; direct_area_test walks hostile ranks.
  HostileArenaTest() { setenv("EPD_DIRECT", "off", 1); }
  ~HostileArenaTest() { unsetenv("EPD_DIRECT"); }

  // Runs the rounds in three ranks, one of which scribbles. `exact`: what is good must be right.
  void Run(const ExchangeCase& c, bool exact) {
    const uint64_t seed = TestSeed();
    RunningDaemon daemon;
    const pid_t worker = daemon.worker_pid();
    const auto body = [seed, exact](JoinedRank& joined, Link& link) -> std::string {
      ClientRank& rank = *joined.rank;
      if (std::string p = rank.RunAndCompare(joined.data); !p.empty()) return "before: " + p;
      link.Say("ready");
      link.Hear();  // Until nobody reads any more.
      Tally tally;
      {
        std::unique_ptr<Scribbler> scribbler;
        if (rank.rank() == kHostile) {
          uint32_t* const arena = OwnArena();
          if (arena == nullptr) return "no writable mapping of staging";
          scribbler = std::make_unique<Scribbler>(arena, seed);
        }
        for (int round = 0; round < kRounds; ++round) RunAll(rank, joined.data, tally);
        link.Say(std::to_string(tally.lost) + " " + std::to_string(tally.good));
        link.Hear();  // Until all have ended their rounds.
      }
      link.Say("stopped");
      link.Hear();
      if (std::string p = rank.RunAndCompare(joined.data, "after"); !p.empty())
        return "after: " + p;
      return exact && rank.rank() != kHostile ? tally.problem : "";
    };
    auto ranks = StartRanks(daemon.socket_path(), c, body);
    const auto go = [&ranks] {
      for (const auto& rank : ranks) rank->link().Say("go");
    };
    for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "ready");
    go();
    for (const auto& rank : ranks) {
      const std::string said = rank->link().Hear();
      std::printf("lost and good calls: %s\n", said.c_str());
      if (rank == ranks[kHostile]) continue;
      ASSERT_GT(std::atoi(said.c_str()), 0) << "nothing was written over";
    }
    go();
    for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "stopped");
    go();
    EXPECT_THAT(FinishAll(ranks), Each(""));
    EXPECT_EQ(daemon.worker_pid(), worker) << "the worker was never replaced";
  }
};

// Its peers read only its counts and its (empty) tables of rows: every good call must be right.
TEST_P(HostileArenaTest, WhatIsGoodIsRightBesideARankWithoutRows) {
  Run({.num_ranks = 3,
       .worker_executor = GetParam(),
       .num_tokens = {8, 8, 0},
       .expert_owner = {0, 0, 1, 1}},
      /*exact=*/true);
}

// Here its rows are garbage by right, and only lengths, indices and tables can do harm.
TEST_P(HostileArenaTest, NobodyCrashesBesideARankWithRows) {
  Run({.num_ranks = 3, .num_experts = 6, .worker_executor = GetParam()}, /*exact=*/false);
}

INSTANTIATE_TEST_SUITE_P(Executors, HostileArenaTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "worker" : "client"; });

}  // namespace
}  // namespace epd::testing
