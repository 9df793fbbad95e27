// Goal: whatever dies - a peer, the worker, epd - or stays away, every rank's call ends soon with
// the documented error that names the guilty one, and what is left can be used at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "client/c/status.h"
#include "tests/integration/client_c/harness/rank_process.h"
#include "tests/integration/client_c/harness/running_daemon.h"
#include "tests/integration/client_c/harness/told.h"

namespace epd::testing {
namespace {

using client::Code;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Lt;
using ::testing::StartsWith;

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string RunOnce(JoinedRank& joined, Link&) { return joined.rank->RunAndCompare(joined.data); }

class FaultsTest : public ::testing::TestWithParam<bool> {
 protected:
  ExchangeCase Case(uint32_t num_ranks) const {
    return {.num_ranks = num_ranks, .num_experts = 2 * num_ranks, .worker_executor = GetParam()};
  }
};

// Runs an exchange, says so, and then: rank `late` waits for a word, all others go into the next
// exchange.
std::string RunThenWait(JoinedRank& joined, Link& link, uint32_t late) {
  if (std::string problem = joined.rank->RunAndCompare(joined.data); !problem.empty())
    return problem;
  link.Say("ran");
  if (joined.rank->rank() == late) link.Hear();
  return joined.rank->Prepare(joined.data).message;
}

TEST_P(FaultsTest, AKilledPeerFailsTheOthersWithinASecondAndIsNamed) {
  RunningDaemon daemon;
  const ExchangeCase c = Case(3);
  auto ranks = StartRanks(daemon.socket_path(), c, [](JoinedRank& joined, Link& link) {
    return RunThenWait(joined, link, 2);
  });
  for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "ran");
  const std::string pid = "pid=" + std::to_string(ranks[2]->pid());
  const auto start = Clock::now();
  ranks[2]->Kill();
  const std::vector<std::string> reports = {ranks[0]->Finish(), ranks[1]->Finish()};
  for (const std::string& report :
       Told("the process of a rank is killed", "all other ranks", reports)) {
    EXPECT_THAT(report, StartsWith("[epd:UNAVAILABLE] group=test"));
    EXPECT_THAT(report, HasSubstr("rank=2 host="));
    EXPECT_THAT(report, HasSubstr(pid));
  }
  EXPECT_LT(SecondsSince(start), 1.0);
  auto fresh = StartRanks(daemon.socket_path(), c, RunOnce);
  EXPECT_THAT(FinishAll(fresh), Each("")) << "a fresh set of processes can use the group at once";
}

// What epd_client.h tells a program that wants to go on after an upgrade.
std::string GoOnAfterAStop(const ExchangeCase& c, JoinedRank& joined, Link& link) {
  ClientRank& before = *joined.rank;
  if (const Result r = before.Prepare(joined.data); !r.ok()) return r.message;
  link.Say("prepared");
  if (!Eventually(20, [&] { return before.Info().stopping == EPD_GROUP_STOPPED; }))
    return "the stop was not noticed";
  const Result refused = before.Dispatch(joined.data);
  link.Say(refused.message);

  const JoinOptions options{.plans = before.Info().plans};
  epd_client* client = nullptr;
  if (const Result r = Connect(link.Hear(), &client); !r.ok()) return r.message;
  ClientRank after(client, c, before.rank());
  if (const Result r = after.Join(options); !r.ok()) return r.message;
  after.plan = before.plan;
  if (const Result r = after.Dispatch(joined.data); !r.ok()) return r.message;
  if (after.recv_tokens != joined.data.recv_tokens) return "other rows";
  return after.RunAndCompare(joined.data, "then ");
}

TEST_P(FaultsTest, AStopInOrderIsToldAndAPlanFromBeforeItIsGoodInTheNextGroup) {
  RunningDaemon stopped;
  RunningDaemon next;
  const ExchangeCase c = Case(2);
  auto ranks = StartRanks(stopped.socket_path(), c, [&](JoinedRank& joined, Link& link) {
    return GoOnAfterAStop(c, joined, link);
  });
  for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "prepared");
  kill(stopped.pid(), SIGTERM);
  const std::vector<std::string> refused = {ranks[0]->link().Hear(), ranks[1]->link().Hear()};
  EXPECT_THAT(Told("a node's epd is stopped in order", "all ranks that call before they join again",
                   refused),
              Each(StartsWith("[epd:UNAVAILABLE]")));
  for (const auto& rank : ranks) rank->link().Say(next.socket_path());
  EXPECT_THAT(FinishAll(ranks), Each(""));
}

TEST_P(FaultsTest, SurvivorsGoOnWithARankThatTookTheDeadOnesPlace) {
  RunningDaemon daemon;
  const ExchangeCase c = Case(3);
  const JoinOptions options{.absent_ms = 10'000};
  const auto survive = [](JoinedRank& joined, Link& link) -> std::string {
    link.Say("joined");
    const auto start = Clock::now();
    int good = 0;
    int failed = 0;
    while (good < 20 || failed == 0) {
      if (SecondsSince(start) > 40) return "nothing failed";
      const std::string problem = joined.rank->RunAndCompare(joined.data);
      if (problem.empty()) {
        ++good;
        continue;
      }
      good = 0;
      ++failed;
      const bool expected =
          problem.starts_with("[epd:UNAVAILABLE]") || problem.starts_with("[epd:ABORTED]");
      if (!expected || SecondsSince(start) > 30) return problem;
      // The caller decides when to try again; here at once, but not as a busy loop.
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return "";
  };
  auto ranks = StartRanks(daemon.socket_path(), c, survive, options);
  for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "joined");
  ranks[2]->Kill();
  RankProcess replacement([&](Link&) -> std::string {
    JoinedRank joined(daemon.socket_path(), c, 2, options);
    if (!joined.problem.empty()) return joined.problem;
    for (int good = 0; good < 20;) {
      const std::string problem = joined.rank->RunAndCompare(joined.data);
      good = problem.empty() ? good + 1 : 0;
      if (!problem.empty() && !problem.starts_with("[epd:UNAVAILABLE]") &&
          !problem.starts_with("[epd:ABORTED]")) {
        return problem;
      }
    }
    return "";
  });
  EXPECT_EQ(replacement.Finish(), "");
  EXPECT_EQ(ranks[0]->Finish(), "");
  EXPECT_EQ(ranks[1]->Finish(), "");
}

TEST_P(FaultsTest, AKilledWorkerIsATypedErrorOnEveryRankAndTheNextCallWorks) {
  RunningDaemon daemon;
  const auto load = [](JoinedRank& joined, Link& link) -> std::string {
    link.Say("running");
    std::string first;
    for (int good = 0; first.empty() || good < 20;) {
      const std::string problem = joined.rank->RunAndCompare(joined.data);
      if (problem.empty()) {
        ++good;
        continue;
      }
      if (!first.empty()) return "a second error: " + problem;
      first = problem;
      good = 0;
      link.Say("failed");
    }
    return first;
  };
  auto ranks = StartRanks(daemon.socket_path(), Case(2), load);
  for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "running");
  // Ranks that are all between two exchanges hear nothing of a worker's death: their next call waits
  // for the next epoch. So more than one may have to be killed.
  bool failed = false;
  for (int tries = 0; tries < 20 && !failed; ++tries) {
    const pid_t before = daemon.worker_pid();
    ASSERT_EQ(kill(before, SIGKILL), 0);
    ASSERT_TRUE(Eventually(30, [&] { return daemon.worker_pid() != before; }));
    failed = ranks[0]->link().Hear(2) == "failed";
  }
  ASSERT_TRUE(failed);
  ASSERT_EQ(ranks[1]->link().Hear(), "failed");
  for (const std::string& report :
       Told("a node's worker is killed", "all ranks on its node", FinishAll(ranks))) {
    // A rank that was between two calls hears at the next that its plan is of the epoch before.
    EXPECT_THAT(report, AnyOf(AllOf(StartsWith("[epd:UNAVAILABLE] group=test"),
                                    HasSubstr("the worker of node "), HasSubstr(" is gone: ")),
                              AllOf(StartsWith("[epd:ABORTED] group=test"),
                                    HasSubstr("formed anew since prepare"))));
  }
}

TEST_P(FaultsTest, AKilledEpdIsUnavailableOnEveryRankWithinASecond) {
  RunningDaemon daemon;
  RunningDaemon other;
  const ExchangeCase c = Case(2);
  auto ranks =
      StartRanks(daemon.socket_path(), c, [&](JoinedRank& joined, Link& link) -> std::string {
        const std::string problem = RunThenWait(joined, link, 1);
        JoinedRank again(other.socket_path(), c, joined.rank->rank());
        if (!again.problem.empty()) return again.problem;
        if (std::string p = again.rank->RunAndCompare(again.data); !p.empty())
          return "afterwards: " + p;
        link.Say("again");
        return problem;
      });
  for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "ran");
  const std::string pid = std::to_string(daemon.pid());
  const auto start = Clock::now();
  daemon.Kill();
  ranks[1]->link().Say("go");
  for (const auto& rank : ranks) EXPECT_EQ(rank->link().Hear(), "again");
  EXPECT_LT(SecondsSince(start), 2.0) << "with the exchange through the other daemon";
  // Who ends the call first says why: the worker, which saw its epd go, or this process's watchdog.
  for (const std::string& report :
       Told("a node's epd is killed", "all ranks on its node", FinishAll(ranks))) {
    EXPECT_THAT(report, StartsWith("[epd:UNAVAILABLE]"));
    EXPECT_THAT(report, HasSubstr("connect"));
  }
}

int64_t MillisecondsNow() {
  return std::chrono::ceil<std::chrono::milliseconds>(Clock::now().time_since_epoch()).count();
}

void PrintSpread(const char* what, std::vector<int64_t> ms) {
  std::sort(ms.begin(), ms.end());
  std::printf("%s after kill -9 of epd: p50 %ld ms, max %ld ms, %zu runs\n", what,
              static_cast<long>(ms[ms.size() / 2]), static_cast<long>(ms.back()), ms.size());
}

// The figures of tests/README.md: EPD_TEST_CRASHES=50, on a quiet machine. Each crash is bounded as a busy machine needs it; the
// best of them keeps what daemon/README.md promises.
TEST_P(FaultsTest, AKilledEpdIsNoticedAtOnceAndOpenCallsEndSoon) {
  const char* asked = std::getenv("EPD_TEST_CRASHES");
  const int num_crashes = asked == nullptr ? 3 : std::atoi(asked);
  std::vector<int64_t> noticed;
  std::vector<int64_t> ended;
  for (int i = 0; i < num_crashes; ++i) {
    RunningDaemon daemon;
    // Rank 0 waits in a call for rank 1, which only looks.
    const auto body = [](JoinedRank& joined, Link& link) -> std::string {
      if (std::string problem = joined.rank->RunAndCompare(joined.data); !problem.empty())
        return problem;
      link.Say("ran");
      if (joined.rank->rank() == 0) {
        if (joined.rank->Prepare(joined.data).ok()) return "the call went well";
      } else {
        while (epd_check(joined.client, nullptr) == EPD_OK)
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      return std::to_string(MillisecondsNow());
    };
    auto ranks = StartRanks(daemon.socket_path(), Case(2), body);
    for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "ran");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // Rank 0 is in its call.
    const int64_t start = MillisecondsNow();
    daemon.Kill();
    ended.push_back(std::atoll(ranks[0]->Finish().c_str()) - start);
    noticed.push_back(std::atoll(ranks[1]->Finish().c_str()) - start);
    EXPECT_THAT(ended.back(), AllOf(Ge(0), Lt(2000)));
    EXPECT_THAT(noticed.back(), AllOf(Ge(0), Lt(1000)));
  }
  EXPECT_LE(*std::min_element(ended.begin(), ended.end()), 400);
  EXPECT_LE(*std::min_element(noticed.begin(), noticed.end()), 100);
  PrintSpread("the session's end is seen", noticed);
  PrintSpread("an open call ends", ended);
}

TEST_P(FaultsTest, ALateRankIsNamedAndItsNextCallMeetsTheOthersAgain) {
  RunningDaemon daemon;
  const JoinOptions options{.warn_after_ms = 200, .absent_ms = 1000};
  const auto body = [](JoinedRank& joined, Link& link) -> std::string {
    const std::string problem = RunThenWait(joined, link, 1);
    if (std::string p = joined.rank->RunAndCompare(joined.data); !p.empty())
      return "afterwards: " + p;
    return problem;
  };
  auto ranks = StartRanks(daemon.socket_path(), Case(2), body, options);
  for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "ran");
  const std::string pid = "pid=" + std::to_string(ranks[1]->pid());
  EXPECT_TRUE(Eventually(10, [&] {
    return daemon.Log().find(pid + " phase=absent") != std::string::npos;
  })) << "the log names who is waited for";
  // Rank 0 fails; only then rank 1 comes: its call belongs to the execution that failed.
  std::this_thread::sleep_for(std::chrono::milliseconds(1200));
  ranks[1]->link().Say("go");
  for (const std::string& report :
       Told("a living rank stays away until the absent deadline", "all ranks", FinishAll(ranks))) {
    EXPECT_THAT(report, StartsWith("[epd:DEADLINE_EXCEEDED] group=test"));
    EXPECT_THAT(report, HasSubstr("rank=1 host="));
    EXPECT_THAT(report, HasSubstr(pid));
  }
}

// Refuses the next prepare of this rank.
std::string RefusePrepare(ClientRank& rank) {
  epd_error error = {};
  error.struct_size = sizeof error;
  epd_refuse_args args = {};
  args.struct_size = sizeof args;
  args.rank = rank.rank();
  args.key.struct_size = sizeof args.key;
  args.key.name = "prepare";
  args.key.execution = EPD_EXECUTION_NEXT;
  args.code = static_cast<int32_t>(Code::kFailedPrecondition);
  args.text = "planted; do it otherwise";
  epd_refuse(rank.group(), &args, &error);
  return error.message;
}

TEST_P(FaultsTest, ACallThatOneRankRefusesFailsOnAllWithItsReasonAndTheNextOneWorks) {
  RunningDaemon daemon;
  const auto body = [](JoinedRank& joined, Link&) -> std::string {
    const std::string refused = joined.rank->rank() == 1
                                    ? RefusePrepare(*joined.rank)
                                    : joined.rank->Prepare(joined.data).message;
    if (std::string p = joined.rank->RunAndCompare(joined.data); !p.empty())
      return "afterwards: " + p;
    return refused;
  };
  auto ranks = StartRanks(daemon.socket_path(), Case(3), body);
  const std::string pid = "pid=" + std::to_string(ranks[1]->pid());
  for (const std::string& report :
       Told("a rank refuses its call (epd_refuse)", "all ranks", FinishAll(ranks))) {
    EXPECT_THAT(report, StartsWith("[epd:FAILED_PRECONDITION] group=test"));
    EXPECT_THAT(report, HasSubstr("rank=1 host="));
    EXPECT_THAT(report, HasSubstr(pid + " phase=announce: planted; do it otherwise"));
  }
}

// `how` the guilty rank goes once it has its error: a word to the body.
void ExpectTheReasonReachesLateRanks(const ExchangeCase& c, const std::string& how) {
  RunningDaemon daemon;
  const auto body = [&](JoinedRank& joined, Link& link) -> std::string {
    if (joined.rank->rank() == 1) {
      const std::string refused = RefusePrepare(*joined.rank);
      if (how == "leaves") joined.rank->Leave();
      link.Say("refused");
      link.Hear();  // Is killed, or told to end.
      return refused;
    }
    link.Hear();
    // Returns once this process has been told that rank 1 is gone.
    const std::string gone = joined.rank->Prepare(joined.data, "something else").message;
    const std::string first = joined.rank->Prepare(joined.data).message;
    const std::string second = joined.rank->Prepare(joined.data).message;
    return first + " AND THEN " + second + " AFTER " + gone;
  };
  auto ranks = StartRanks(daemon.socket_path(), c, body);
  ASSERT_EQ(ranks[1]->link().Hear(), "refused");
  const std::string pid = "pid=" + std::to_string(ranks[1]->pid());
  if (how == "dies") ranks[1]->Kill();
  for (const int late : {0, 2}) ranks[late]->link().Say("go");
  for (const int late : {0, 2}) {
    const std::string report = ranks[late]->Finish();
    EXPECT_THAT(report, StartsWith("[epd:FAILED_PRECONDITION] group=test"));
    EXPECT_THAT(report, HasSubstr(pid + " phase=announce: planted; do it otherwise"));
    EXPECT_THAT(report, HasSubstr("AND THEN [epd:UNAVAILABLE] group=test"));
    EXPECT_THAT(report, HasSubstr("AFTER [epd:UNAVAILABLE] group=test"));
  }
}

TEST_P(FaultsTest, AReasonReachesRanksThatComeAfterTheGuiltyOneHasLeft) {
  ExpectTheReasonReachesLateRanks(Case(3), "leaves");
}

TEST_P(FaultsTest, AReasonReachesRanksThatComeAfterTheGuiltyOneHasDied) {
  ExpectTheReasonReachesLateRanks(Case(3), "dies");
}

// Where the rank's limit lies its peers cannot see.
TEST(FaultsOfMachinesTest, TheOthersHearWhyARankCannotMapItsStaging) {
  RunningDaemon daemon;
  const ExchangeCase c = {.num_ranks = 2, .num_experts = 4};
  RankProcess limited([&](Link&) -> std::string {
    epd_client* client = nullptr;
    if (const Result r = Connect(daemon.socket_path(), &client); !r.ok()) return r.message;
    ClientRank rank(client, c, 0);
    std::ifstream statm("/proc/self/statm");
    uint64_t pages = 0;
    statm >> pages;
    const rlim_t bytes = pages * static_cast<rlim_t>(getpagesize()) + (rlim_t{1} << 20);
    const rlimit limit = {bytes, bytes};
    if (setrlimit(RLIMIT_AS, &limit) != 0) return "setrlimit";
    return rank.Join().message;
  });
  RankProcess other([&](Link&) -> std::string {
    JoinedRank joined(daemon.socket_path(), c, 1);
    return joined.problem.empty() ? joined.rank->Prepare(joined.data).message : joined.problem;
  });
  const std::string own = limited.Finish();
  EXPECT_THAT(own, StartsWith("[epd:RESOURCE_EXHAUSTED] group=test"));
  EXPECT_THAT(own, AllOf(HasSubstr("cannot map "), HasSubstr("ulimit -v")));
  const std::string heard = other.Finish();
  EXPECT_THAT(heard, StartsWith("[epd:UNAVAILABLE] group=test"));
  EXPECT_THAT(heard, AllOf(HasSubstr("rank=0 host="), HasSubstr(" has left (cannot map "),
                           HasSubstr("ulimit -v")));
}

INSTANTIATE_TEST_SUITE_P(Executors, FaultsTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "worker" : "client"; });

}  // namespace
}  // namespace epd::testing
