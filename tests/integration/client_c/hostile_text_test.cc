// Goal: texts of the public C API that are no UTF-8, or longer than anything shows, are shown clean or refused; the calls
// that carry them end well, and neither epd nor a worker ends, on one node or on two.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "tests/integration/client_c/harness/node_fleet.h"
#include "tests/integration/client_c/harness/rank_process.h"
#include "tests/integration/client_c/harness/running_daemon.h"

namespace epd::testing {
namespace {

using ::testing::Each;

constexpr int kInvalidArgument = 3;

// A cut character at every place where names are cut, bytes that begin none, control characters.
const std::vector<std::string>& HostileNames() {
  static const auto* const names = new std::vector<std::string>{
      "\xff\xfe",
      "\xc3",
      "\xed\xa0\x80",
      "\x1b[31m\n",
      std::string(25, 'x') + "\u4e16\u754c",  // Across the 31 bytes that `why` shows.
      std::string(26, 'x') + "\U0001f600",
      std::string(254, 'x') + "\U0001f600",  // Across the 255 bytes of a slot.
      std::string(300'000, '\xff'),
  };
  return *names;
}

std::string Epctl(const RunningDaemon& daemon, const std::string& words) {
  const std::string command =
      "timeout 20 client/cli/epctl --socket=" + daemon.socket_path() + " " + words + " 2>&1";
  FILE* const pipe = popen(command.c_str(), "r");
  std::string text(1 << 20, '\0');
  text.resize(fread(text.data(), 1, text.size(), pipe));
  EXPECT_EQ(pclose(pipe), 0) << command << ": " << text;
  return text;
}

std::string RunAll(JoinedRank& joined, Link& link) {
  for (const std::string& name : HostileNames()) {
    if (std::string p = joined.rank->RunAndCompare(joined.data, name); !p.empty()) return p;
  }
  // Open for as long as epd asks its workers what they do.
  if (joined.rank->rank() == 0) link.Say("ready");
  if (joined.rank->rank() != 0) link.Hear();
  for (const std::string& name : HostileNames()) {
    if (Result r = joined.rank->Prepare(joined.data, "open" + name); !r.ok()) return r.message;
  }
  return "";
}

void Check(std::vector<std::unique_ptr<RankProcess>> ranks,
           const std::vector<RunningDaemon*>& daemons) {
  std::vector<pid_t> workers;
  for (const RunningDaemon* daemon : daemons) workers.push_back(daemon->worker_pid());
  ASSERT_EQ(ranks[0]->link().Hear(), "ready");
  for (const RunningDaemon* daemon : daemons) {
    for (const char* const words : {"why test", "status", "ranks test", "memory"}) {
      Epctl(*daemon, words);
    }
  }
  for (size_t rank = 1; rank < ranks.size(); ++rank) ranks[rank]->link().Say("go");
  EXPECT_THAT(FinishAll(ranks), Each(""));
  for (size_t i = 0; i < daemons.size(); ++i) {
    EXPECT_EQ(daemons[i]->worker_pid(), workers[i]) << daemons[i]->Log();
  }
}

class HostileTextTest : public ::testing::TestWithParam<bool> {};

TEST_P(HostileTextTest, NamesOfOperationsOnOneNode) {
  RunningDaemon daemon;
  const ExchangeCase c{.num_ranks = 2, .worker_executor = GetParam()};
  Check(StartRanks(daemon.socket_path(), c, RunAll), {&daemon});
}

TEST_P(HostileTextTest, NamesOfOperationsOnTwoNodes) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "Debian's gRPC is not instrumented: what it hands from thread to thread without "
                  "locks, between nodes, looks like races";
#endif
  NodeFleet fleet(2);
  const ExchangeCase c{.num_ranks = 2, .worker_executor = GetParam()};
  Check(fleet.StartRanks(c, RunAll), {&fleet.node(0), &fleet.node(1)});
}

INSTANTIATE_TEST_SUITE_P(Executors, HostileTextTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "worker" : "client"; });

TEST(HostileTextTest, TextsOfASessionAndOfAJoinAreShownCleanOrRefused) {
  RunningDaemon daemon;
  const pid_t worker = daemon.worker_pid();
  const ExchangeCase c{.num_ranks = 1};
  for (const std::string& text : HostileNames()) {
    RankProcess rank([&](Link&) -> std::string {
      epd_connect_args args = {};
      args.struct_size = sizeof args;
      args.socket_path = daemon.socket_path().c_str();
      args.client_name = text.c_str();
      epd_client* client = nullptr;
      epd_error error = {};
      if (epd_connect(&args, &client, &error) != EPD_OK) return error.message;
      const std::vector<std::function<void(JoinOptions&)>> places = {
          [&](JoinOptions& o) { o.group = text; },   [&](JoinOptions& o) { o.instance = text; },
          [&](JoinOptions& o) { o.tenant = text; },  [&](JoinOptions& o) { o.program = text; },
          [&](JoinOptions& o) { o.backend = text; }, [&](JoinOptions& o) { o.metadata = text; },
          [&](JoinOptions& o) { o.device = text; }};
      for (size_t i = 0; i < places.size(); ++i) {
        ClientRank refused(client, c, 0);
        JoinOptions options;
        places[i](options);
        const Result joined = refused.Join(options);
        if (joined.code != kInvalidArgument)
          return std::to_string(i) + ": " + std::to_string(joined.code) + " " + joined.message;
      }
      ClientRank good(client, c, 0);
      if (const Result joined = good.Join(); !joined.ok()) return joined.message;
      for (const char* const words : {"sessions", "ranks test", "why test"}) {
        const std::string shown = Epctl(daemon, words);
        if (shown.find('\x1b') != std::string::npos) return shown;
      }
      return good.RunAndCompare(MakeExchange(c)[0]);
    });
    EXPECT_EQ(rank.Finish(), "") << text.substr(0, 50);
  }
  EXPECT_EQ(daemon.worker_pid(), worker) << daemon.Log();
}

}  // namespace
}  // namespace epd::testing
