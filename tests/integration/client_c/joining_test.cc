// Goal: ranks that do not fit together are told so, all of them, before anything is exchanged; and
// a group can be left and joined again with other sizes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <string>

#include "tests/integration/client_c/harness/rank_process.h"
#include "tests/integration/client_c/harness/running_daemon.h"
#include "tests/integration/client_c/harness/told.h"

namespace epd::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(JoiningTest, ADifferentSpecIsNamedWithItsFieldOnEveryRank) {
  RunningDaemon daemon;
  std::vector<std::unique_ptr<RankProcess>> ranks;
  for (uint32_t rank : {0u, 1u}) {
    ranks.push_back(std::make_unique<RankProcess>([&](Link&) {
      const ExchangeCase c{.num_ranks = 2, .hidden = rank == 0 ? 16u : 32u};
      return JoinedRank(daemon.socket_path(), c, rank).problem;
    }));
  }
  for (const std::string& report :
       Told("ranks join with different sizes", "all ranks", FinishAll(ranks))) {
    EXPECT_THAT(report, StartsWith("[epd:INVALID_ARGUMENT]"));
    EXPECT_THAT(report, HasSubstr("hidden"));
    EXPECT_THAT(report, HasSubstr("16"));
    EXPECT_THAT(report, HasSubstr("32"));
  }
}

TEST(JoiningTest, ARankThatALivingProcessHoldsIsRefusedAndItsHolderNamed) {
  RunningDaemon daemon;
  const ExchangeCase c{.num_ranks = 1};
  RankProcess holder([&](Link& link) {
    JoinedRank joined(daemon.socket_path(), c, 0);
    link.Say("joined");
    link.Hear();
    return joined.rank->RunAndCompare(joined.data);
  });
  ASSERT_EQ(holder.link().Hear(), "joined");
  RankProcess second(
      [&](Link&) { return JoinedRank(daemon.socket_path(), c, 0, {.form_ms = 2000}).problem; });
  const std::string report =
      Told("a rank is joined that a living process holds", "who joins", {second.Finish()})[0];
  EXPECT_THAT(report, StartsWith("[epd:ALREADY_EXISTS]"));
  EXPECT_THAT(report, HasSubstr("pid=" + std::to_string(holder.pid())));
  holder.link().Say("go");
  EXPECT_EQ(holder.Finish(), "") << "the holder goes on";
}

TEST(JoiningTest, MissingRanksAreListedWhenTheDeadlinePasses) {
  RunningDaemon daemon;
  const ExchangeCase c{.num_ranks = 3, .num_experts = 6};
  RankProcess alone(
      [&](Link&) { return JoinedRank(daemon.socket_path(), c, 1, {.form_ms = 500}).problem; });
  const std::string report = Told("ranks are missing when the forming deadline passes",
                                  "all that came", {alone.Finish()})[0];
  EXPECT_THAT(report, StartsWith("[epd:DEADLINE_EXCEEDED]"));
  EXPECT_THAT(report, HasSubstr("arrived: rank=1 host="));
  EXPECT_THAT(report, HasSubstr("missing: ranks 0, 2"));
}

TEST(JoiningTest, ARankOutsideOfTheGroupAndBadSizesAreRefused) {
  RunningDaemon daemon;
  const auto problem = [&](const ExchangeCase& c, uint32_t rank) {
    RankProcess process([&](Link&) {
      return JoinedRank(daemon.socket_path(), c, rank, {.form_ms = 1000}).problem;
    });
    return process.Finish();
  };
  EXPECT_THAT(problem({.num_ranks = 2}, 2), StartsWith("[epd:INVALID_ARGUMENT]"));
  EXPECT_THAT(problem({.num_ranks = 1, .num_experts = 0}, 0), StartsWith("[epd:INVALID_ARGUMENT]"));
  EXPECT_THAT(problem({.num_ranks = 1, .num_experts = 2, .expert_owner = {0, 7}}, 0),
              StartsWith("[epd:INVALID_ARGUMENT]"));
}

TEST(JoiningTest, AGroupThatWasLeftCanBeJoinedAgainWithOtherSizes) {
  RunningDaemon daemon;
  std::vector<std::unique_ptr<RankProcess>> ranks;
  for (uint32_t rank : {0u, 1u}) {
    ranks.push_back(std::make_unique<RankProcess>([&](Link&) -> std::string {
      epd_client* client = nullptr;
      if (Result r = Connect(daemon.socket_path(), &client); !r.ok()) return r.message;
      for (const uint32_t hidden : {16u, 48u, 16u}) {
        const ExchangeCase c{.num_ranks = 2, .hidden = hidden};
        ClientRank joined(client, c, rank);
        if (Result r = joined.Join(); !r.ok()) return r.message;
        if (std::string p = joined.RunAndCompare(MakeExchange(c)[rank]); !p.empty()) return p;
        if (Result r = joined.Leave(); !r.ok()) return r.message;
      }
      epd_disconnect(client);
      return "";
    }));
  }
  EXPECT_THAT(FinishAll(ranks), Each(""));
}

TEST(JoiningTest, APlanFromBeforeTheGroupWasJoinedAgainIsRefusedOnEveryRank) {
  RunningDaemon daemon;
  const ExchangeCase c{.num_ranks = 2};
  std::vector<std::unique_ptr<RankProcess>> ranks;
  for (uint32_t rank : {0u, 1u}) {
    ranks.push_back(std::make_unique<RankProcess>([&](Link&) -> std::string {
      JoinedRank joined(daemon.socket_path(), c, rank);
      if (std::string p = joined.rank->RunAndCompare(joined.data); !p.empty()) return p;
      const std::vector<uint8_t> old_plan = joined.rank->plan;
      if (Result r = joined.rank->Leave(); !r.ok()) return r.message;
      if (Result r = joined.rank->Join(); !r.ok()) return r.message;
      if (Result r = joined.rank->Prepare(joined.data); !r.ok()) return r.message;
      if (rank == 0) joined.rank->plan = old_plan;
      const Result stale = joined.rank->Dispatch(joined.data);
      if (std::string p = joined.rank->RunAndCompare(joined.data); !p.empty())
        return "afterwards: " + p;
      return stale.message;
    }));
  }
  for (const std::string& report : Told("a rank uses a plan from before the group was joined again",
                                        "all ranks", FinishAll(ranks))) {
    EXPECT_THAT(report, StartsWith("[epd:INVALID_ARGUMENT] group=test"));
    EXPECT_THAT(report, HasSubstr("rank=0 host="));
    EXPECT_THAT(report, HasSubstr("group id of the routing plan"));
  }
}

// The worker's replacement starts a new epoch of the same group.
TEST(JoiningTest, APlanFromAnEarlierEpochIsAbortedOnEveryRankWithBothEpochsNamed) {
  RunningDaemon daemon;
  const auto use_old_plan = [](JoinedRank& joined, Link& link) -> std::string {
    if (std::string p = joined.rank->RunAndCompare(joined.data); !p.empty()) return p;
    const uint64_t epoch = joined.rank->epoch();
    const std::vector<uint8_t> old_plan = joined.rank->plan;
    link.Say("ran");
    link.Hear();
    // Idle while the worker was replaced, so no call failed; this one waits for the new formation.
    if (Result r = joined.rank->Prepare(joined.data); !r.ok()) return r.message;
    if (joined.rank->epoch() <= epoch) return "the epoch is still " + std::to_string(epoch);
    if (joined.rank->rank() == 0) joined.rank->plan = old_plan;
    const Result stale = joined.rank->Dispatch(joined.data);
    if (std::string p = joined.rank->RunAndCompare(joined.data); !p.empty())
      return "afterwards: " + p;
    return "from " + std::to_string(epoch) + " to " + std::to_string(joined.rank->epoch()) + ": " +
           stale.message;
  };
  auto ranks = StartRanks(daemon.socket_path(), {.num_ranks = 2}, use_old_plan);
  for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "ran");
  const pid_t worker = daemon.worker_pid();
  ASSERT_EQ(kill(worker, SIGKILL), 0);
  ASSERT_TRUE(Eventually(10, [&] { return daemon.worker_pid() != worker; })) << daemon.Log();
  for (const auto& rank : ranks) rank->link().Say("go");
  for (const std::string& report :
       Told("a rank uses a plan of an earlier epoch", "all ranks", FinishAll(ranks))) {
    unsigned long before = 0;
    unsigned long after = 0;
    ASSERT_EQ(std::sscanf(report.c_str(), "from %lu to %lu:", &before, &after), 2) << report;
    EXPECT_THAT(report, HasSubstr("[epd:ABORTED] group=test epoch=" + std::to_string(after)));
    EXPECT_THAT(report, HasSubstr("rank=0 host="));
    EXPECT_THAT(report, HasSubstr("epoch of the routing plan"));
    EXPECT_THAT(report, HasSubstr(std::to_string(before) + ", expected " + std::to_string(after)));
  }
}

}  // namespace
}  // namespace epd::testing
