// Goal: epd's program is replaced under its clients, by the same version and by others of the state, and no call, session,
// worker or group hears of it; a program that cannot take over changes nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/node/handover/handover_version.h"
#include "tests/integration/client_c/harness/rank_process.h"
#include "tests/integration/client_c/harness/running_daemon.h"

namespace epd::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

std::string OtherEpd(const std::string& name) {
  return std::filesystem::absolute("tests/long/replace/" + name);
}

std::string VersionOfThisSource() { return absl::StrCat(kHandoverMajor, ".", kHandoverMinor); }

// What test and ranks share.
struct Rounds {
  std::atomic<uint64_t> done;
  std::atomic<uint64_t> last;
};

class ReplaceTest : public ::testing::TestWithParam<bool> {
 protected:
  ReplaceTest()
      : rounds_(static_cast<Rounds*>(mmap(nullptr, sizeof(Rounds), PROT_READ | PROT_WRITE,
                                          MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    rounds_->last = UINT64_MAX;
  }
  ~ReplaceTest() override { munmap(rounds_, sizeof(Rounds)); }

  // Exchanges until the test says which one is the last.
  std::string Exchange(JoinedRank& joined) const {
    const uint64_t epoch = joined.rank->Info().epoch;
    for (uint64_t n = 0; n <= rounds_->last; ++n) {
      if (std::string problem = joined.rank->RunAndCompare(joined.data); !problem.empty())
        return "round " + std::to_string(n) + ": " + problem;
      if (joined.rank->rank() == 0) rounds_->done = n;
    }
    const uint64_t now = joined.rank->Info().epoch;
    return now == epoch ? "" : "epoch " + std::to_string(now) + " after " + std::to_string(epoch);
  }
  // Waits until the ranks have gone on from where they are.
  bool GoOn() const {
    const uint64_t now = rounds_->done;
    return Eventually(20, [&] { return rounds_->done > now + 3; });
  }

  Rounds* const rounds_;
};

TEST_P(ReplaceTest, NobodyHearsOfItUnderLoad) {
  RunningDaemon daemon;
  const pid_t worker = daemon.worker_pid();
  const ExchangeCase c{.num_ranks = 3, .num_experts = 6, .worker_executor = GetParam()};
  auto ranks = StartRanks(daemon.socket_path(), c,
                          [this](JoinedRank& joined, Link&) { return Exchange(joined); });
  ASSERT_TRUE(GoOn());
  const std::string same = std::filesystem::absolute("daemon/epd");
  for (const std::string& program :
       {same, OtherEpd("epd_next_minor"), OtherEpd("epd_next_minor"), same}) {
    const RunningDaemon::Said said = daemon.Replace(program);
    EXPECT_EQ(said.exit_code, 0) << said.text;
    EXPECT_THAT(said.text, HasSubstr("in the same process"));
    ASSERT_TRUE(GoOn()) << daemon.Log();
  }
  rounds_->last = rounds_->done + 20;
  EXPECT_THAT(FinishAll(ranks), Each("")) << daemon.Log();
  EXPECT_EQ(kill(daemon.pid(), 0), 0);
  EXPECT_EQ(daemon.worker_pid(), worker);
  EXPECT_EQ(kill(worker, 0), 0);
}

TEST_P(ReplaceTest, AfterwardsTheNodeDoesWhatItEverDid) {
  RunningDaemon daemon({"--slots_per_session=1000"});  // What sessions have of it goes on.
  ASSERT_EQ(daemon.Replace(std::filesystem::absolute("daemon/epd")).exit_code, 0);
  const ExchangeCase c{.num_ranks = 2, .num_experts = 4, .worker_executor = GetParam()};
  auto ranks = StartRanks(daemon.socket_path(), c, [](JoinedRank& joined, Link& link) {
    if (std::string problem = joined.rank->RunAndCompare(joined.data); !problem.empty())
      return problem;
    link.Say("ran");
    link.Hear();
    return joined.rank->Prepare(joined.data).message;
  });
  for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "ran");
  ASSERT_EQ(daemon.Replace(std::filesystem::absolute("daemon/epd")).exit_code, 0);
  // The worker is this process's child still: its end is noticed, and what it had open ends.
  const pid_t worker = daemon.worker_pid();
  kill(worker, SIGKILL);
  ASSERT_TRUE(Eventually(20, [&] { return daemon.worker_pid() != worker; })) << daemon.Log();
  for (const auto& rank : ranks) rank->link().Say("go");
  EXPECT_THAT(FinishAll(ranks), Each("")) << daemon.Log();
}

TEST_P(ReplaceTest, AProgramThatCannotTakeOverIsRefusedAndChangesNothing) {
  RunningDaemon daemon;
  const ExchangeCase c{.num_ranks = 2, .num_experts = 4, .worker_executor = GetParam()};
  auto ranks = StartRanks(daemon.socket_path(), c,
                          [this](JoinedRank& joined, Link&) { return Exchange(joined); });
  ASSERT_TRUE(GoOn());
  EXPECT_THAT(daemon.Replace(OtherEpd("epd_next_major")).text,
              AllOf(HasSubstr(absl::StrCat("state of version ", VersionOfThisSource(),
                                           ", the other program takes ", kHandoverMajor + 1, ".x")),
                    ::testing::Not(HasSubstr("upgrade epd"))));
  EXPECT_THAT(daemon.Replace("/nowhere/epd").text, HasSubstr("cannot run '/nowhere/epd'"));
  EXPECT_THAT(daemon.Replace("epd").text, HasSubstr("got 'epd', expected an absolute path"));
  EXPECT_THAT(daemon.Replace("/bin/true").text, HasSubstr("did not say whether"));
  EXPECT_THAT(daemon.Log(), AllOf(HasSubstr("result=UNIMPLEMENTED"), HasSubstr("result=NOT_FOUND"),
                                  HasSubstr("result=INVALID_ARGUMENT"),
                                  ::testing::Not(HasSubstr("event=\"replacing\""))));
  // One that asks to be known takes over, and is not left to one that does not know.
  EXPECT_EQ(daemon.Replace(OtherEpd("epd_must_know")).exit_code, 0);
  EXPECT_THAT(daemon.Replace(std::filesystem::absolute("daemon/epd")).text,
              HasSubstr(absl::StrCat("with 'something-new', which the other program, of version ",
                                     VersionOfThisSource(), ", does not know")));
  ASSERT_TRUE(GoOn());
  rounds_->last = rounds_->done + 20;
  EXPECT_THAT(FinishAll(ranks), Each("")) << daemon.Log();
}

INSTANTIATE_TEST_SUITE_P(BothExecutors, ReplaceTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Worker" : "Client"; });

}  // namespace
}  // namespace epd::testing
