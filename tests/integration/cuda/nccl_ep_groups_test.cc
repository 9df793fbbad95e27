// Goal: groups with backend=nccl_ep do the five operations with the bits that plain loops give, over real
// processes, a fake driver, a fake NCCL and a fake NCCL EP that carries the rows; whatever the library dies
// of, in whichever call, takes its worker with it and nothing else: one typed error on every rank, and the
// group goes on in a new epoch; what the library cannot do, or is not there for, is refused by its name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/integration/client_c/harness/node_fleet.h"
#include "tests/integration/cuda/on_nccl_ep.h"
#include "tests/integration/cuda/stream_rank.h"
#include "tests/integration/cuda/stream_steps.h"

namespace epd::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// What is left out, dropped, empty, padded or beside the library's own sizes.
std::vector<ExchangeCase> Cases(uint32_t num_ranks) {
  std::vector<ExchangeCase> cases(7, BasicOnNcclEp(num_ranks));
  cases[0].hidden = 64;
  cases[0].alignment = 16;
  cases[0].routing = Routing::kSomeMissing;
  cases[0].wide_indices = true;
  cases[1].num_tokens.assign(num_ranks, 7);
  cases[1].num_tokens[0] = 0;
  cases[1].num_tokens[1] = 70;
  cases[2].num_tokens.assign(num_ranks, 0);
  cases[3].top_k = 1;
  cases[3].routing = Routing::kOneExpert;
  cases[3].capacity = 9;
  cases[3].alignment = 4;
  cases[3].drop = true;
  cases[4].num_tokens.assign(num_ranks, 30);
  cases[4].capacity = 40;
  cases[4].capacities.assign(num_ranks, 40);
  cases[4].capacities[0] = 21;
  cases[4].alignment = 8;
  cases[4].drop = true;
  cases[5].hidden = 2048;
  cases[5].capacity = 1024;  // A whole number of the library's units: rows land where they belong.
  cases[5].num_tokens.assign(num_ranks, 128);
  cases[6].top_k = 1;  // Tokens without any route.
  cases[6].routing = Routing::kSomeMissing;
  return cases;
}

// Exchanges until one fails, and stays until everybody has heard of his own.
std::string UntilOneFails(JoinedRank& joined, Link& link) {
  std::string failed = joined.rank->RunAndCompare(joined.data);
  link.Say("ran");
  while (failed.empty()) failed = joined.rank->RunAndCompare(joined.data);
  link.Say(failed);
  link.Hear();
  return "";
}

std::vector<std::string> HearAllAndLetGo(std::vector<std::unique_ptr<RankProcess>>& ranks) {
  std::vector<std::string> heard;
  for (const auto& rank : ranks) heard.push_back(rank->link().Hear());
  for (const auto& rank : ranks) rank->link().Say("go");
  FinishAll(ranks);
  return heard;
}

class NcclEpGroups : public OnNcclEp {};

// What JAX's programs do: calls in a stream, put anew and replayed.
std::string RunStreams(const ExchangeCase& c, JoinedRank& joined) {
  StreamRank streams(FakeGpu::Library(), joined, c);
  std::string problem = streams.problem;
  if (problem.empty()) problem = RunSteps(streams, c, joined.rank->rank(), 0, 3);
  if (problem.empty()) problem = ReplaySteps(streams, c, joined.rank->rank(), 3, 30);
  return problem;
}

TEST_F(NcclEpGroups, CallsInStreamsGetWhatPlainLoopsGiveAlsoInReplays) {
  NodeFleet fleet(2, kNcclEpFlags);
  for (const bool drop : {false, true}) {
    ExchangeCase c = BasicOnNcclEp(2);
    c.alignment = 4;
    c.drop = drop;
    if (drop) c.capacity = 10;
    SCOPED_TRACE(c.ToString());
    auto ranks = fleet.StartRanks(
        c, [&c](JoinedRank& joined, Link&) { return RunStreams(c, joined); }, kOnNcclEp);
    EXPECT_THAT(FinishAll(ranks), Each(""));
  }
  EXPECT_EQ(NumEnds(fleet, 2), 0);
}

TEST_F(NcclEpGroups, RanksOnTheGpusOfOneNodeGetWhatPlainLoopsGive) {
  setenv("EPD_FAKE_CUDA", "devices=2", 1);
  RunningDaemon daemon({"--cuda_staging_bytes=512MiB", "--cuda_devices=0,1"});
  ExchangeCase c = BasicOnNcclEp(2);
  c.num_experts = 4;  // Of one team.
  const auto on_either = [](uint32_t rank) {
    JoinOptions options = kOnNcclEp;
    options.device = rank == 0 ? "cuda:0" : "cuda:1";
    return options;
  };
  auto ranks = StartRanks(daemon.socket_path(), c, RunTwice, on_either);
  EXPECT_THAT(FinishAll(ranks), Each(""));
}

TEST_F(NcclEpGroups, EveryRankGetsWhatPlainLoopsGive) {
  for (const uint32_t num_ranks : {2u, 3u}) {
    NodeFleet fleet(static_cast<int>(num_ranks), kNcclEpFlags);
    for (const ExchangeCase& c : Cases(num_ranks)) {
      SCOPED_TRACE(c.ToString());
      auto ranks = fleet.StartRanks(c, RunTwice, kOnNcclEp);
      EXPECT_THAT(FinishAll(ranks), Each(""));
    }
    EXPECT_EQ(NumEnds(fleet, static_cast<int>(num_ranks)), 0);
    EXPECT_EQ(access((folder_.path() + "/epd/nccl_ep").c_str(), F_OK), 0) << "epd's own cache";
  }
}

TEST_F(NcclEpGroups, TwoTenantsEnterOneCommunicatorInOneOrder) {
  NodeFleet fleet(2, kNcclEpFlags);
  JoinOptions other = kOnNcclEp;
  other.tenant = "other";
  const auto body = [](JoinedRank& joined, Link&) { return joined.RunAndLeave(8); };
  auto first = fleet.StartRanks(BasicOnNcclEp(2), body, kOnNcclEp);
  auto second = fleet.StartRanks(BasicOnNcclEp(2), body, other);
  EXPECT_THAT(FinishAll(first), Each(""));
  EXPECT_THAT(FinishAll(second), Each(""));
}

// For the time of its life.
class ChangedEnvironment {
 public:
  ChangedEnvironment(const char* name, const char* value) : name_(name) {
    const char* before = getenv(name);
    had_ = before != nullptr;
    if (had_) before_ = before;
    setenv(name, value, 1);
  }
  ~ChangedEnvironment() {
    if (had_) {
      setenv(name_, before_.c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }
  ChangedEnvironment(const ChangedEnvironment&) = delete;
  ChangedEnvironment& operator=(const ChangedEnvironment&) = delete;

 private:
  const char* const name_;
  bool had_ = false;
  std::string before_;
};

struct Death {
  const char* how;
  const char* at;
};

class NcclEpDeaths : public NcclEpGroups, public ::testing::WithParamInterface<Death> {};
INSTANTIATE_TEST_SUITE_P(Calls, NcclEpDeaths,
                         ::testing::Values(Death{"exit", "update"}, Death{"abort", "dispatch"},
                                           Death{"throw", "combine"}, Death{"error", "dispatch"}),
                         [](const auto& death) {
                           return std::string(death.param.how) + "_in_" + death.param.at;
                         });

TEST_P(NcclEpDeaths, IsOneTypedErrorOnEveryRankAndANewEpoch) {
  Arm(GetParam().how, GetParam().at);
  NodeFleet fleet(2, kNcclEpFlags);
  const std::vector<pid_t> epds = {fleet.node(0).pid(), fleet.node(1).pid()};
  auto ranks = fleet.StartRanks(BasicOnNcclEp(2), FailAndRecover(), kOnNcclEp);
  for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "ran");
  EndTheNextCall();
  EXPECT_THAT(FinishAll(ranks), Each(AnyOf(StartsWith("[epd:ABORTED] group=ep"),
                                           StartsWith("[epd:UNAVAILABLE] group=ep"))));
  EXPECT_TRUE(CallHasEnded());
  EXPECT_GE(NumEnds(fleet, 2), 1);
  EXPECT_EQ((std::vector<pid_t>{fleet.node(0).pid(), fleet.node(1).pid()}), epds);
}

TEST_F(NcclEpGroups, ADeathWhileTheGroupFormsIsSurvivedAndTheGroupForms) {
  Arm("abort", "create");
  EndTheNextCall();
  NodeFleet fleet(2, kNcclEpFlags);
  auto ranks = fleet.StartRanks(BasicOnNcclEp(2), RunTwice, kOnNcclEp);
  EXPECT_THAT(FinishAll(ranks), Each(""));
  EXPECT_TRUE(CallHasEnded());
  EXPECT_GE(NumEnds(fleet, 2), 1);
}

TEST_F(NcclEpGroups, ACallThatNeverReturnsEndsItsWorkerInTime) {
  Arm("hang", "combine");
  std::vector<std::string> flags = kNcclEpFlags;
  flags.push_back("--cuda_limit=6s");
  NodeFleet fleet(2, flags);
  auto ranks = fleet.StartRanks(BasicOnNcclEp(2), FailAndRecover(), kOnNcclEp);
  for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "ran");
  EndTheNextCall();
  EXPECT_THAT(FinishAll(ranks), Each(StartsWith("[epd:")));
  EXPECT_GE(NumEnds(fleet, 2), 1);
}

TEST_F(NcclEpGroups, AWorkerThatIsKilledTakesNoOtherNodesEpdWithIt) {
  NodeFleet fleet(3, kNcclEpFlags);
  auto ranks = fleet.StartRanks(BasicOnNcclEp(3), FailAndRecover(), kOnNcclEp);
  for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "ran");
  kill(fleet.node(1).worker_pid("cuda:0"), SIGKILL);
  EXPECT_THAT(FinishAll(ranks), Each(AnyOf(StartsWith("[epd:ABORTED] group=ep"),
                                           StartsWith("[epd:UNAVAILABLE] group=ep"))));
}

TEST_F(NcclEpGroups, ALayoutThatIsNotThePlansIsANamedErrorAndNoRows) {
  Arm("counts", "update");
  NodeFleet fleet(2, kNcclEpFlags);
  auto ranks = fleet.StartRanks(BasicOnNcclEp(2), UntilOneFails, kOnNcclEp);
  for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "ran");
  EndTheNextCall();
  EXPECT_THAT(HearAllAndLetGo(ranks), Each(HasSubstr("NCCL EP laid its experts out in zones of")));
  EXPECT_EQ(NumEnds(fleet, 2), 0);
}

TEST_F(NcclEpGroups, ATokenThatNamesAnExpertTwiceIsRefusedBeforeTheLibraryIsAsked) {
  NodeFleet fleet(2, kNcclEpFlags);
  ExchangeCase c = BasicOnNcclEp(2);
  c.routing = Routing::kOneExpert;
  c.distinct = false;
  auto ranks = fleet.StartRanks(c, UntilOneFails, kOnNcclEp);
  for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "ran");
  EXPECT_THAT(HearAllAndLetGo(ranks),
              Each(AllOf(HasSubstr("names expert 1 twice"), HasSubstr("backend=cuda"))));
  EXPECT_EQ(NumEnds(fleet, 2), 0);
}

// ---- refusals ----

class NcclEpRefusals : public NcclEpGroups {
 protected:
  static std::vector<std::string> Refused(const ExchangeCase& c, int num_nodes = 2) {
    NodeFleet fleet(num_nodes, kNcclEpFlags);
    auto ranks = fleet.StartRanks(
        c, [](JoinedRank&, Link&) -> std::string { return "joined"; }, kOnNcclEp);
    std::vector<std::string> heard = FinishAll(ranks);
    EXPECT_EQ(NumEnds(fleet, num_nodes), 0);
    EXPECT_THAT(heard, Each(HasSubstr("backend=cuda")));
    return heard;
  }
};

TEST_F(NcclEpRefusals, AnOldLibraryByItsVersion) {
  setenv("EPD_FAKE_NCCL_EP", "old", 1);
  EXPECT_THAT(Refused(BasicOnNcclEp(2)), Each(AllOf(HasSubstr("FAILED_PRECONDITION"),
                                                    HasSubstr("NCCL EP 0.1.0, and no nccl_ep.h"),
                                                    HasSubstr("expected 0.2.0"))));
}

TEST_F(NcclEpRefusals, ALibraryThatDiesWhenItIsAskedForItsVersion) {
  setenv("EPD_FAKE_NCCL_EP", "abort", 1);
  EXPECT_THAT(Refused(BasicOnNcclEp(2)),
              Each(AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("killed by signal 6"))));
}

TEST_F(NcclEpRefusals, AMachineWithoutACompiler) {
  unsetenv("NCCL_EP_JIT_NVCC");
  const ChangedEnvironment no_home("CUDA_HOME", "/none");
  const ChangedEnvironment no_nvcc("NVCC", "/none");
  const ChangedEnvironment no_path("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
  EXPECT_THAT(Refused(BasicOnNcclEp(2)),
              Each(AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("JIT unavailable"))));
}

TEST_F(NcclEpRefusals, SeveralRanksOnOneGpu) {
  EXPECT_THAT(Refused(BasicOnNcclEp(4)),
              Each(AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("one rank per GPU"))));
}

// The library ends the workers at their first dispatch.
TEST_F(NcclEpRefusals, TeamsOfANodeWhoseExpertsAreNoMultipleOfFour) {
  ExchangeCase c = BasicOnNcclEp(2);
  c.num_experts = 4;
  EXPECT_THAT(Refused(c), Each(AllOf(HasSubstr("FAILED_PRECONDITION"),
                                     HasSubstr("teams of 1, which have 2 of the 4 experts"))));
}

TEST_F(NcclEpRefusals, ADtypeThatTheLibraryDoesNotSum) {
  ExchangeCase c = BasicOnNcclEp(2);
  c.dtype = EPD_DTYPE_FLOAT32;
  EXPECT_THAT(Refused(c),
              Each(AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("max_token_dtype is float32"))));
}

}  // namespace
}  // namespace epd::testing
