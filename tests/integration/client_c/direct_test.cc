// Goal: rows go from rank to rank without the worker, bit for bit as through it; whoever dies meanwhile, every
// living rank is told the same outcome of the same call; and the worker knows of all that was done without it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <thread>

#include "proto/epd/v1/direct_area.h"
#include "tests/integration/client_c/harness/rank_process.h"
#include "tests/integration/client_c/harness/running_daemon.h"
#include "tests/seed/seed.h"

namespace epd::testing {
namespace {

using ::testing::Each;

// How many calls this process has published in its own arena; -1: it has none.
int64_t NumPublished() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    if (line.find("epd-staging") == std::string::npos) continue;
    if (line.find(" rw-s ") == std::string::npos) continue;
    if (std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) != 2) continue;
    const auto* area = reinterpret_cast<const shm::DirectArea*>(end - sizeof(shm::DirectArea));
    return shm::GateCount(area->gate.load());
  }
  return -1;
}

// The same once every rank has come so far: a group that somebody leaves forms anew, and its arenas go.
int64_t NumPublishedByThen(Link& link) {
  const int64_t published = NumPublished();
  link.Say("looked");
  link.Hear();
  return published;
}

std::vector<std::string> LetAllLook(std::vector<std::unique_ptr<RankProcess>>& ranks) {
  for (const auto& rank : ranks) EXPECT_EQ(rank->link().Hear(), "looked");
  for (const auto& rank : ranks) rank->link().Say("go");
  return FinishAll(ranks);
}

ExchangeCase Case(uint32_t num_ranks) {
  return {.num_ranks = num_ranks, .num_experts = 2 * num_ranks, .hidden = 256};
}

// Rows of a few hundred KiB to a few MiB: several eager buffers.
ExchangeCase LargeCase(uint32_t num_ranks) {
  ExchangeCase c = {.num_ranks = num_ranks, .num_experts = 2 * num_ranks, .hidden = 1024};
  for (uint32_t rank = 0; rank < num_ranks; ++rank) c.num_tokens.push_back(80 + 150 * rank);
  return c;
}

// Steps of five calls.
std::function<std::string(JoinedRank&, Link&)> RunSteps(int num_steps, int64_t at_least_published) {
  return [=](JoinedRank& joined, Link& link) {
    for (int step = 0; step < num_steps; ++step) {
      if (std::string p = joined.rank->RunAndCompare(joined.data); !p.empty()) return p;
    }
    const int64_t published = NumPublishedByThen(link);
    if (published < at_least_published)
      return "only " + std::to_string(published) + " calls were published";
    return joined.rank->Leave().message;
  };
}

TEST(DirectTest, CallsOfOneNameGoWithoutTheWorkerFromTheSecondOnAndAreRight) {
  const RunningDaemon daemon;
  // The first of each name asks the worker, and so does one when the records are full, or the places for routes, or where
  // a busy machine lets a rank come late.
  auto ranks = StartRanks(daemon.socket_path(), Case(3), RunSteps(200, 5 * 199 * 3 / 4));
  EXPECT_THAT(LetAllLook(ranks), Each(""));
}

TEST(DirectTest, SoDoLargerRowsOnceTheWorkerHasMadeRoomForThem) {
  const RunningDaemon daemon;
  auto ranks = StartRanks(daemon.socket_path(), LargeCase(3), RunSteps(60, 5 * 58 / 2));
  EXPECT_THAT(LetAllLook(ranks), Each(""));
}

TEST(DirectTest, RowsThatAreTooLargeOnOneRankTakeThoseOfItsPeersThroughTheWorker) {
  const RunningDaemon daemon;
  ExchangeCase c = LargeCase(2);
  c.num_tokens = {4000, 100};
  auto ranks = StartRanks(daemon.socket_path(), c, RunSteps(12, 0));
  EXPECT_THAT(LetAllLook(ranks), Each(""));
}

TEST(DirectTest, OffMeansThatNothingIsPublished) {
  const RunningDaemon daemon;
  setenv("EPD_DIRECT", "off", 1);
  auto ranks = StartRanks(daemon.socket_path(), Case(2), [](JoinedRank& joined, Link& link) {
    for (int step = 0; step < 5; ++step) {
      if (std::string p = joined.rank->RunAndCompare(joined.data); !p.empty()) return p;
    }
    return NumPublishedByThen(link) == 0 ? std::string() : "calls were published";
  });
  unsetenv("EPD_DIRECT");
  EXPECT_THAT(LetAllLook(ranks), Each(""));
}

// Calls dispatch until it fails; which call that was.
std::string CountUntilItFails(JoinedRank& joined, Link& link) {
  if (Result r = joined.rank->Prepare(joined.data); !r.ok()) return r.message;
  for (int call = 0;; ++call) {
    if (call == 50) link.Say("running");
    if (!joined.rank->Dispatch(joined.data).ok()) return "failed at " + std::to_string(call);
  }
}

TEST(DirectTest, WhoeverIsKilledAllOthersFailInTheSameCall) {
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 12; ++round) {
    const RunningDaemon daemon;
    auto ranks =
        StartRanks(daemon.socket_path(), round < 6 ? Case(3) : LargeCase(3), CountUntilItFails);
    for (auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "running");
    std::this_thread::sleep_for(std::chrono::microseconds(static_cast<int64_t>(random() % 5000)));
    const bool kill_worker = round % 2 == 0;
    if (kill_worker) {
      kill(daemon.worker_pid(), SIGKILL);
    } else {
      ranks[2]->Kill();
      ranks.pop_back();
    }
    const std::vector<std::string> said = FinishAll(ranks);
    EXPECT_THAT(said, Each(said[0])) << "round " << round;
    EXPECT_EQ(said[0].rfind("failed at ", 0), 0u) << said[0];
  }
}

TEST(DirectTest, ARankThatLeavesAtOnceTakesNobodysRowsAway) {
  const RunningDaemon daemon;
  for (int round = 0; round < 20; ++round) {
    auto ranks = StartRanks(daemon.socket_path(), Case(3), [](JoinedRank& joined, Link&) {
      for (int step = 0; step < 4; ++step) {
        if (std::string p = joined.rank->RunAndCompare(joined.data); !p.empty()) return p;
      }
      return joined.rank->Leave().message;
    });
    EXPECT_THAT(FinishAll(ranks), Each("")) << "round " << round;
  }
}

}  // namespace
}  // namespace epd::testing
