// Goal: a rank that was told that its operation is good, and reads its rows only after epd, the worker or both were killed, has
// the right rows or a named error, never others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "tests/integration/client_c/harness/rank_process.h"
#include "tests/integration/client_c/harness/read_trap.h"
#include "tests/integration/client_c/harness/running_daemon.h"

namespace epd::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

enum class Victim { kEpd, kWorker, kBoth };

constexpr char kRight[] = "right";

// Rows of two pages, which go by eager buffers; or of 16, in regions.
constexpr uint32_t kSmall = 2048;
constexpr uint32_t kLarge = 16384;

bool HasEnded(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string number, name, state;
  return !(file >> number >> name >> state) || state == "Z";
}

// Rank 0 is held where it writes the first rows that it reads; rank 1 reads at once.
std::string ReadHeld(JoinedRank& joined, Link& link, bool combine) {
  ClientRank& rank = *joined.rank;
  for (int step = 0; step < 3; ++step) {  // From the second on, small rows go without the worker.
    if (std::string p = rank.RunAndCompare(joined.data); !p.empty()) return p;
  }
  if (Result r = rank.Prepare(joined.data); !r.ok()) return r.message;
  bool held = true;
  if (rank.rank() == 0)
    rank.on_poisoned = [&](const Bytes& rows) { held = HoldAtFirstTouch(rows, link); };
  const Result read = combine ? rank.Combine(joined.data) : rank.Dispatch(joined.data);
  if (!held) return "no whole page to hold at";
  if (rank.rank() == 1) {
    link.Say(read.message + "read");
    link.Hear();
    return "";
  }
  if (!read.ok()) return read.message;
  const bool right =
      combine ? rank.tokens == joined.data.combined : rank.recv_tokens == joined.data.recv_tokens;
  return right ? kRight : "other rows";
}

class HeldPullTest : public ::testing::TestWithParam<std::tuple<Victim, bool, uint32_t>> {
 protected:
  // What rank 0 has in the end.
  static std::string KillWhileHeld(bool combine) {
    const auto [victim, worker_executor, hidden] = GetParam();
    RunningDaemon daemon;
    const ExchangeCase c{
        .num_ranks = 2, .num_experts = 4, .hidden = hidden, .worker_executor = worker_executor};
    auto ranks = StartRanks(daemon.socket_path(), c, [&](JoinedRank& joined, Link& link) {
      return ReadHeld(joined, link, combine);
    });
    EXPECT_EQ(ranks[0]->link().Hear(), kTrapped);
    EXPECT_EQ(ranks[1]->link().Hear(), "read");
    const pid_t worker = daemon.worker_pid();
    if (victim != Victim::kEpd) kill(worker, SIGKILL);
    if (victim != Victim::kWorker) daemon.Kill();
    EXPECT_TRUE(Eventually(20, [&] { return HasEnded(worker); }))
        << "also where its epd was killed";
    if (victim == Victim::kWorker) {
      EXPECT_TRUE(Eventually(20, [&] { return daemon.worker_pid() != worker; }));
    }
    ranks[0]->link().Say("go on");
    const std::string report = ranks[0]->Finish();
    ranks[1]->link().Say("go on");
    EXPECT_EQ(ranks[1]->Finish(), "");
    return report;
  }
};

TEST_P(HeldPullTest, ItsRowsAreRightOrItsErrorIsNamed) {
  for (const bool combine : {false, true}) {
    SCOPED_TRACE(combine ? "combine" : "dispatch");
    const std::string report = KillWhileHeld(combine);
    std::printf("%s: %s\n", combine ? "combine" : "dispatch", report.c_str());
    EXPECT_THAT(
        report,
        AnyOf(kRight, AllOf(AnyOf(StartsWith("[epd:UNAVAILABLE]"), StartsWith("[epd:ABORTED]")),
                            AnyOf(HasSubstr("the worker of node "), HasSubstr("on node "),
                                  HasSubstr("formed anew"), HasSubstr("rows went away")),
                            Not(HasSubstr("damaged")))));
  }
}

std::string NameOf(const ::testing::TestParamInfo<HeldPullTest::ParamType>& test) {
  const char* const victims[] = {"epd", "worker", "both"};
  return std::string(victims[static_cast<int>(std::get<0>(test.param))]) +
         (std::get<1>(test.param) ? "_worker_executor" : "_client_executor") +
         (std::get<2>(test.param) == kSmall ? "_small" : "_large");
}

INSTANTIATE_TEST_SUITE_P(Deaths, HeldPullTest,
                         ::testing::Combine(::testing::Values(Victim::kEpd, Victim::kWorker,
                                                              Victim::kBoth),
                                            ::testing::Bool(), ::testing::Values(kSmall, kLarge)),
                         NameOf);

}  // namespace
}  // namespace epd::testing
