// Goal: ranks on several nodes, each with its own epd and address, get from all five operations the
// bits that plain loops give; what goes wrong on one node is heard on all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/client_c/harness/exchange_cases.h"
#include "tests/integration/client_c/harness/node_fleet.h"
#include "tests/integration/client_c/harness/staging_use.h"
#include "tests/integration/client_c/harness/told.h"

namespace epd::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kSteps = 3;

std::string RunSteps(JoinedRank& joined, Link&) { return joined.RunAndLeave(kSteps); }

// "" once all five have ended well; else the last problem.
std::string RunUntilGood(JoinedRank& joined) {
  std::string problem;
  for (int i = 0; i < 1000; ++i) {
    problem = joined.rank->RunAndCompare(joined.data);
    if (problem.find("[epd:") == std::string::npos) break;
  }
  return problem;
}

TEST(NodesTest, EveryRankOfFourNodesGetsWhatPlainLoopsGive) {
  NodeFleet fleet(4);
  for (ExchangeCase c : CasesOfNodes(8)) {
    for (const bool worker_executor : {false, true}) {
      c.worker_executor = worker_executor;
      SCOPED_TRACE(c.ToString());
      auto ranks = fleet.StartRanks(c, RunSteps);
      EXPECT_THAT(FinishAll(ranks), Each(""));
    }
  }
}

TEST(NodesTest, TheWorkerExecutorMovesRowsBetweenTwoNodes) {
  NodeFleet fleet(2);
  ExchangeCase c{
      .num_ranks = 4, .num_experts = 8, .top_k = 4, .hidden = 512, .num_tokens = {300, 0, 7, 64}};
  c.worker_executor = true;
  auto ranks = fleet.StartRanks(c, RunSteps);
  EXPECT_THAT(FinishAll(ranks), Each(""));
  // What fails in one worker's hands fails on all nodes, and ends nothing.
  c.capacity = 40;
  ranks = fleet.StartRanks(c, [](JoinedRank& joined, Link&) -> std::string {
    RankData one = joined.data;
    for (int64_t& expert : one.topk_idx) expert = 3;
    if (Result r = joined.rank->Prepare(one); !r.ok()) return r.message;
    return joined.rank->Dispatch(one).message;
  });
  EXPECT_THAT(FinishAll(ranks), Each(HasSubstr("slots, its capacity is 40")));
}

// Four ranks are on each node: a rank maps the arenas of those here, and of each other node one.
TEST(NodesTest, WhatARankMapsGrowsWithTheNodesAndNotWithTheRanksOnThem) {
  NodeFleet fleet(3);
  const ExchangeCase c{.num_ranks = 12, .num_experts = 12};
  auto ranks = fleet.StartRanks(c, [](JoinedRank& joined, Link& link) -> std::string {
    if (std::string p = joined.rank->RunAndCompare(joined.data); !p.empty()) return p;
    link.Say("ran");
    link.Hear();
    return joined.RunAndLeave(kSteps);
  });
  for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "ran");
  constexpr size_t kHere = 4, kOtherNodes = 2;
  for (const auto& rank : ranks) {
    const StagingUse use = StagingUseOf(rank->pid());
    EXPECT_EQ(use.num_mappings, kHere + kOtherNodes);
    EXPECT_EQ(use.num_writable, 1u) << "of its own arena";
    EXPECT_EQ(use.num_descriptors, 0u) << "what is mapped needs none";
  }
  for (int node = 0; node < 3; ++node) {
    const StagingUse of_worker = StagingUseOf(fleet.node(node).worker_pid());
    EXPECT_EQ(of_worker.num_memfds, kHere + kOtherNodes);
    EXPECT_EQ(of_worker.num_descriptors, 2 * (kHere + kOtherNodes));
    const StagingUse of_epd = StagingUseOf(fleet.node(node).pid());
    EXPECT_EQ(of_epd.num_memfds, 0u) << "all have joined, and nobody meets without the worker";
  }
  for (const auto& rank : ranks) rank->link().Say("go");
  EXPECT_THAT(FinishAll(ranks), Each(""));
}

TEST(NodesTest, CallsThatDoNotAgreeAndOverflowsAreHeardOnAllNodesAndEndNothing) {
  NodeFleet fleet(2);
  const ExchangeCase c{.num_ranks = 4, .capacity = 40};
  auto ranks = fleet.StartRanks(c, [](JoinedRank& joined, Link&) -> std::string {
    if (std::string p = joined.rank->RunAndCompare(joined.data); !p.empty()) return p;
    const Result differ = joined.rank->rank() < 2 ? joined.rank->Dispatch(joined.data, "same")
                                                  : joined.rank->Combine(joined.data, "same");
    // The group forms anew, with a cut-off; what was begun before fails like the call itself.
    if (std::string p = RunUntilGood(joined); !p.empty()) return "then: " + p;
    RankData one = joined.data;
    for (int64_t& expert : one.topk_idx) expert = 3;
    if (Result r = joined.rank->Prepare(one); !r.ok()) return r.message;
    const Result over = joined.rank->Dispatch(one);
    if (std::string p = joined.rank->RunAndCompare(joined.data); !p.empty()) return "last: " + p;
    return differ.message + " | " + over.message;
  });
  for (const std::string& report : FinishAll(ranks)) {
    EXPECT_THAT(report, HasSubstr("[epd:INVALID_ARGUMENT] group=test"));
    EXPECT_THAT(report, HasSubstr("do not agree in kind"));
    EXPECT_THAT(report, HasSubstr("would receive 64 slots, its capacity is 40"));
  }
}

// Rows that the ranks of the first half have for tokens with a route to the second one, or the
// other way round.
uint64_t PairsTo(const ExchangeCase& c, const std::vector<RankData>& data, int node) {
  uint64_t pairs = 0;
  for (uint32_t rank = 0; rank < c.num_ranks; ++rank) {
    if (static_cast<int>(rank * 2 / c.num_ranks) == node) continue;
    for (uint32_t token = 0; token < c.tokens(rank); ++token) {
      bool goes = false;
      for (uint32_t k = 0; k < c.top_k; ++k) {
        const auto expert = static_cast<uint32_t>(data[rank].topk_idx[token * c.top_k + k]);
        goes = goes || static_cast<int>(c.owner(expert) * 2 / c.num_ranks) == node;
      }
      pairs += goes ? 1 : 0;
    }
  }
  return pairs;
}

// Bytes of rows that a node has sent to another one, as epctl shows them.
uint64_t ShownAsSent(const RunningDaemon& daemon, const std::string& to) {
  const std::string command =
      "timeout 20 client/cli/epctl --socket=" + daemon.socket_path() + " status -o json";
  FILE* const pipe = popen(command.c_str(), "r");
  std::string text(64 << 10, '\0');
  text.resize(fread(text.data(), 1, text.size(), pipe));
  EXPECT_EQ(pclose(pipe), 0) << text;
  const size_t traffic = text.find("\"traffic\"");
  const size_t node = text.find("\"" + to + "\"", traffic);
  const std::string key = "\"sent_bytes\":";
  const size_t at = text.find(key, node);
  if (traffic == std::string::npos || node == std::string::npos || at == std::string::npos) {
    ADD_FAILURE() << "no traffic to " << to << ":\n" << text;
    return 0;
  }
  return std::stoull(text.substr(text.find_first_of("0123456789", at + key.size()), 20));
}

TEST(NodesTest, ARowCrossesOncePerNode) {
  NodeFleet fleet(2);
  constexpr int kTimes = 10;
  const ExchangeCase c{.num_ranks = 4,
                       .num_experts = 8,
                       .top_k = 4,
                       .hidden = 1024,
                       .num_tokens = {64, 64, 64, 64},
                       .seed = 5};
  auto ranks = fleet.StartRanks(c, [](JoinedRank& joined, Link& link) -> std::string {
    if (Result r = joined.rank->Prepare(joined.data); !r.ok()) return r.message;
    for (int i = 0; i < kTimes + 1; ++i) {
      if (i == 1) {
        link.Say("ready");
        link.Hear();
      }
      if (Result r = joined.rank->Dispatch(joined.data); !r.ok()) return r.message;
    }
    link.Say("done");
    link.Hear();
    return "";
  });
  for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "ready");
  const uint64_t before = fleet.network().SentBytes(0);
  const uint64_t shown_before = ShownAsSent(fleet.node(0), "n1");
  for (const auto& rank : ranks) rank->link().Say("go");
  for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "done");
  const uint64_t sent = fleet.network().SentBytes(0) - before;
  const uint64_t shown = ShownAsSent(fleet.node(0), "n1") - shown_before;
  for (const auto& rank : ranks) rank->link().Say("go");
  EXPECT_THAT(FinishAll(ranks), Each(""));
  const uint64_t rows = PairsTo(c, MakeExchange(c), 1) * c.row_bytes() * kTimes;
  EXPECT_GE(shown, rows);
  EXPECT_LE(static_cast<double>(shown), 1.05 * static_cast<double>(rows));
  if (!fleet.network().namespaces()) return;  // The loopback's bytes are not this node's alone.
  EXPECT_GE(sent, shown);
  EXPECT_LE(static_cast<double>(sent), 1.05 * static_cast<double>(rows));
  std::printf("dispatch: %.1f MB on the link for %.1f MB of rows\n",
              static_cast<double>(sent) / 1e6, static_cast<double>(rows) / 1e6);
}

// What a caller answers by trying again.
bool IsPassing(const std::string& problem) {
  return problem.starts_with("[epd:UNAVAILABLE]") || problem.starts_with("[epd:ABORTED]");
}

TEST(NodesTest, AWorkerThatCannotBeReachedIsNamedAndNothingSpins) {
  NodeFleet fleet(2, {}, /*wire=*/true);
  if (!fleet.network().namespaces()) GTEST_SKIP() << "needs namespaces to lose packets in";
  ASSERT_TRUE(fleet.network().Hide(1, 0));
  const ExchangeCase c{.num_ranks = 4};
  // Each leaves with its error, which is not what the others hear of.
  auto ranks = fleet.StartRanks(c, [](JoinedRank& joined, Link&) -> std::string {
    const auto begin = std::chrono::steady_clock::now();
    const std::string problem = joined.rank->RunAndCompare(joined.data);
    const auto took = std::chrono::steady_clock::now() - begin;
    return took < std::chrono::seconds(40) ? problem : "it took too long: " + problem;
  });
  for (const std::string& report :
       Told("two nodes cannot reach each other", "all ranks", FinishAll(ranks))) {
    EXPECT_THAT(report, HasSubstr("[epd:UNAVAILABLE] group=test"));
    // Whichever of the two streams is given up first; the answers of node 0 are lost, too.
    EXPECT_THAT(report,
                ContainsRegex("the stream to node n[01] cpu at 10.78.0.[12]:[0-9]+ is lost"));
  }
  const std::string log = fleet.node(0).Log();
  int num_formations = 0;
  for (size_t at = 0; (at = log.find("to=READY", at)) != std::string::npos; ++at) ++num_formations;
  EXPECT_LT(num_formations, 10) << log;
}

TEST(NodesTest, ALostNodeIsNamedAtOnceAndAReplacementCarriesOn) {
  NodeFleet fleet(2, {"--heartbeat=1s"});
  const ExchangeCase c{.num_ranks = 4};
  const auto body = [](JoinedRank& joined, Link& link) -> std::string {
    if (std::string p = joined.rank->RunAndCompare(joined.data); !p.empty()) return p;
    link.Say("ready");
    std::string heard;
    for (;;) {
      const std::string problem = joined.rank->RunAndCompare(joined.data);
      if (!problem.empty() && heard.empty()) heard = problem;
      if (problem.empty() && !heard.empty()) return heard;
      if (!problem.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  };
  auto ranks = fleet.StartRanks(c, body);
  for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "ready");
  for (int lost : {2, 3}) ranks[lost]->Kill();
  fleet.Kill(1);
  fleet.Restart(1);
  std::vector<std::unique_ptr<RankProcess>> again;
  for (uint32_t rank : {2u, 3u}) {
    again.push_back(std::make_unique<RankProcess>([&, rank](Link&) -> std::string {
      JoinedRank joined(fleet.node(1).socket_path(), c, rank);
      if (!joined.problem.empty()) return joined.problem;
      // A call that a survivor began while the group formed again ends the first formation once more.
      std::string problem = joined.rank->RunAndCompare(joined.data);
      for (int tries = 0; tries < 100 && IsPassing(problem); ++tries) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        problem = joined.rank->RunAndCompare(joined.data);
      }
      return problem;
    }));
  }
  EXPECT_THAT(FinishAll(again), Each(""));
  for (int rank : {0, 1}) {
    const std::string report = ranks[static_cast<size_t>(rank)]->Finish();
    EXPECT_THAT(report, HasSubstr("UNAVAILABLE"));
    EXPECT_THAT(report, ContainsRegex("rank=2|ranks=2-3"));
  }
}

// What dies on one of three nodes, again until a call fails, while six ranks, two a node, step without pauses. The reports
// of the ranks elsewhere.
std::vector<std::string> ReportsWhenDies(int node, const std::function<void(NodeFleet&)>& kill) {
  NodeFleet fleet(3, {"--heartbeat=1s"});
  const auto body = [](JoinedRank& joined, Link& link) -> std::string {
    if (std::string p = joined.rank->RunAndCompare(joined.data); !p.empty()) return p;
    link.Say("ready");
    for (;;) {
      if (std::string problem = joined.rank->RunAndCompare(joined.data); !problem.empty()) {
        link.Say("failed");
        return problem;
      }
    }
  };
  auto ranks = fleet.StartRanks(ExchangeCase{.num_ranks = 6, .num_experts = 6}, body);
  for (const auto& rank : ranks) EXPECT_EQ(rank->link().Hear(), "ready");
  kill(fleet);
  // Ranks that are all between two exchanges hear nothing of a worker's death.
  for (int tries = 0; tries < 5 && ranks[2]->link().Hear(5) != "failed"; ++tries) kill(fleet);
  for (const int rank : {0, 1, 3, 4, 5}) EXPECT_EQ(ranks[rank]->link().Hear(), "failed");
  std::vector<std::string> reports = FinishAll(ranks);
  reports.erase(reports.begin() + 2 * node, reports.begin() + 2 * node + 2);
  return reports;
}

// Its epd coordinates, its worker leads: whoever speaks first, the others hear which node it was and whose ranks.
TEST(NodesTest, WhenTheNodeOfRank0DiesAllOthersHearWhichItWas) {
  EXPECT_THAT(Told("a node's epd is killed", "all ranks on other nodes",
                   ReportsWhenDies(0, [](NodeFleet& fleet) { fleet.Kill(0); })),
              Each(AllOf(HasSubstr("[epd:UNAVAILABLE]"), HasSubstr("the worker of node n0 cpu"),
                         HasSubstr("ranks=0-1"), HasSubstr("has ended"))));
}

// No rank's process is told as lost: they all live.
TEST(NodesTest, WhenAWorkerDiesAllOthersHearWhichOneItWas) {
  for (const int node : {0, 2}) {
    const auto kill = [&](NodeFleet& fleet) {
      EXPECT_EQ(::kill(fleet.node(node).worker_pid(), SIGKILL), 0);
    };
    EXPECT_THAT(
        Told("a node's worker is killed", "all ranks on other nodes", ReportsWhenDies(node, kill)),
        Each(AllOf(ContainsRegex("worker.*node.n" + std::to_string(node)),
                   Not(ContainsRegex("pid=[0-9]+ phase=(lost|gone|dead)")))));
  }
}

}  // namespace
}  // namespace epd::testing
