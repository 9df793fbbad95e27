// Goal: a group whose ranks are on several GPUs of one node does the five operations with the bits that plain loops
// give, over one epd and a worker process per fake device: out of each other's memory where every device can read every
// other's, else all by a fake NCCL that carries the bytes; when one worker is killed every rank hears a typed error, and
// the group goes on in a new epoch; no call ever breaks a rule of the driver or of NCCL.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "tests/integration/client_c/harness/exchange_cases.h"
#include "tests/integration/client_c/harness/rank_process.h"
#include "tests/integration/client_c/harness/running_daemon.h"
#include "tests/integration/cuda/on_cuda.h"

namespace epd::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A node's devices, as the fake driver takes them.
constexpr char kTwo[] = "devices=2";
constexpr char kTwoOfThemApart[] = "devices=2 nopeer=1-0";

class CudaMembers : public OnFakeGpu {
 protected:
  CudaMembers() { setenv("EPD_FAKE_CUDA", kTwo, 1); }

  // No TLS, no cluster: what the two workers tell each other stays on the node.
  const std::vector<std::string> flags_ = {"--cuda_staging_bytes=512MiB", "--cuda_devices=0,1"};
};

TEST_F(CudaMembers, EveryRankOnTwoGpusOfANodeGetsWhatPlainLoopsGive) {
  RunningDaemon daemon(flags_);
  for (const uint32_t num_ranks : {2, 4}) {
    for (ExchangeCase c : CasesOfNodes(num_ranks)) {
      c.worker_executor = true;
      for (uint32_t& owner : c.expert_owner) owner %= num_ranks;
      SCOPED_TRACE(c.ToString());
      auto ranks = StartRanks(daemon.socket_path(), c, RunTwice, OnEither);
      EXPECT_THAT(FinishAll(ranks), Each(""));
    }
  }
  EXPECT_EQ(daemon.Log().find("worker ended"), std::string::npos);
  EXPECT_THAT(daemon.Log(), HasSubstr("rows go directly between the node's devices"));
  EXPECT_EQ(gpu_.CountNcclMarks('r'), 0) << "nothing went by NCCL";
}

// The first of the two refuses nothing, and uses NCCL as well.
TEST_F(CudaMembers, WithoutPeerAccessInOneDirectionRowsGoByNcclAndTheLogSaysWhy) {
  setenv("EPD_FAKE_CUDA", kTwoOfThemApart, 1);
  RunningDaemon daemon(flags_);
  ExchangeCase c = CasesOfNodes(4)[0];
  c.worker_executor = true;
  auto ranks = StartRanks(daemon.socket_path(), c, RunTwice, OnEither);
  EXPECT_THAT(FinishAll(ranks), Each(""));
  EXPECT_THAT(daemon.Log(), HasSubstr("rows go by NCCL between the node's devices: cuda:1 has no "
                                      "peer access to cuda:0"));
  EXPECT_EQ(gpu_.CountNcclMarks('r'), 2);
}

class CudaManyMembers : public CudaMembers, public ::testing::WithParamInterface<uint32_t> {
 protected:
  CudaManyMembers() {
    setenv("EPD_FAKE_CUDA", ("devices=" + std::to_string(num_devices_)).c_str(), 1);
  }
  // epd serves all of them.
  std::vector<std::string> Flags() const {
    std::string all = "0";
    for (uint32_t i = 1; i < num_devices_; ++i) all += "," + std::to_string(i);
    return {"--cuda_staging_bytes=256MiB", "--cuda_devices=" + all};
  }

  const uint32_t num_devices_ = GetParam();
};
INSTANTIATE_TEST_SUITE_P(Gpus, CudaManyMembers, ::testing::Values(4, 8),
                         ::testing::PrintToStringParamName());

TEST_P(CudaManyMembers, EveryRankGetsWhatPlainLoopsGive) {
  const uint32_t num_devices = num_devices_;
  RunningDaemon daemon(Flags());
  ExchangeCase c = CasesOfNodes(num_devices)[0];
  c.worker_executor = true;
  auto ranks = StartRanks(daemon.socket_path(), c, RunTwice,
                          [=](uint32_t rank) { return OnOneOf(num_devices, rank); });
  EXPECT_THAT(FinishAll(ranks), Each(""));
  EXPECT_EQ(gpu_.CountNcclMarks('r'), 0);
}

// How many of a process's sockets are one end of two that are connected on this machine.
int NumLocalConnections(pid_t pid) {
  const std::string of_process = "/proc/" + std::to_string(pid);
  std::set<std::string> connected;
  std::ifstream table(of_process + "/net/unix");
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::string word;
    std::string state;
    for (int column = 0; column < 7 && words >> word; ++column) {
      if (column == 5) state = word;
    }
    if (state == "03") connected.insert("socket:[" + word + "]");
  }
  int count = 0;
  for (const auto& fd : std::filesystem::directory_iterator(of_process + "/fd")) {
    std::error_code gone;
    if (connected.contains(std::filesystem::read_symlink(fd.path(), gone).string())) ++count;
  }
  return count;
}

// The test's results say how long an exchange of five operations took on average: leader_messages_us, of each rank the last.
TEST_P(CudaManyMembers, WorkersSpeakWithEachOtherBySocketsOfTheirOwn) {
  const uint32_t num_devices = num_devices_;
  RunningDaemon daemon(Flags());
  const ExchangeCase c{
      .num_ranks = num_devices, .num_experts = num_devices, .worker_executor = true};
  auto ranks = StartRanks(
      daemon.socket_path(), c,
      [](JoinedRank& joined, Link& link) -> std::string {
        if (std::string p = joined.rank->RunAndCompare(joined.data); !p.empty()) return p;
        constexpr int kSteps = 40;
        const auto began = std::chrono::steady_clock::now();
        for (int step = 0; step < kSteps; ++step) {
          if (std::string p = joined.rank->RunAndCompare(joined.data); !p.empty()) return p;
        }
        const auto took = (std::chrono::steady_clock::now() - began) / kSteps;
        link.Say(std::to_string(took / std::chrono::microseconds(1)));
        link.Hear();
        return joined.rank->Leave().message;
      },
      [=](uint32_t rank) { return OnOneOf(num_devices, rank); });
  for (const auto& rank : ranks) RecordProperty("leader_messages_us", rank->link().Hear());
  for (uint32_t i = 0; i < num_devices; ++i) {
    EXPECT_EQ(NumLocalConnections(daemon.worker_pid("cuda:" + std::to_string(i))), num_devices)
        << "one to epd, and one to each other worker";
  }
  for (const auto& rank : ranks) rank->link().Say("go");
  EXPECT_THAT(FinishAll(ranks), Each(""));
}

TEST_F(CudaMembers, TwoTenantsOfAGroupReadEachTheirOwnRows) {
  RunningDaemon daemon(flags_);
  const ExchangeCase c{.num_ranks = 4, .num_experts = 8, .worker_executor = true};
  const auto body = [](JoinedRank& joined, Link&) { return joined.RunAndLeave(5); };
  auto first = StartRanks(daemon.socket_path(), c, body, OnEither);
  auto second = StartRanks(daemon.socket_path(), c, body, [](uint32_t rank) {
    JoinOptions options = OnEither(rank);
    options.tenant = "other";
    return options;
  });
  EXPECT_THAT(FinishAll(first), Each(""));
  EXPECT_THAT(FinishAll(second), Each(""));
  EXPECT_EQ(gpu_.CountNcclMarks('r'), 0);
}

// Rank `first` on cuda:0 and the one behind it on cuda:1, of one session: each in a thread of its own, until it has
// made `steps` good ones after an error if there is to be one. What they heard.
std::string RunTwoGpus(const std::string& socket, const ExchangeCase& c, uint32_t first, Link& link,
                       bool fails) {
  JoinOptions options = kOnCuda;
  options.device = "cuda:0";
  options.also = {{first + 1, "cuda:1"}};
  JoinedRank joined(socket, c, first, options);
  if (!joined.problem.empty()) return joined.problem;
  ClientRank other(joined.client, c, first + 1);
  other.Borrow(*joined.rank);
  const RankData of_other = MakeExchange(c)[first + 1];
  std::string heard[2];
  const auto run = [&](ClientRank& rank, const RankData& data, std::string* error) {
    for (int step = 0; step < 3 && error->empty(); ++step) *error = rank.RunAndCompare(data);
    if (!fails) return;
    if (error->empty() && rank.rank() == first) link.Say("ran");
    for (int step = 0; step < 10'000 && error->empty(); ++step) *error = rank.RunAndCompare(data);
    std::string again = *error;
    for (int step = 0; step < 1000 && !again.empty(); ++step) again = rank.RunAndCompare(data);
    if (!again.empty()) *error = "never good again: " + again;
  };
  std::thread thread([&] { run(other, of_other, &heard[1]); });
  run(*joined.rank, joined.data, &heard[0]);
  thread.join();
  return heard[0].empty() ? heard[1] : heard[0];
}

class CudaProcesses : public CudaMembers {
 protected:
  std::vector<std::unique_ptr<RankProcess>> Start(const RunningDaemon& daemon, bool fails) {
    std::vector<std::unique_ptr<RankProcess>> processes;
    for (const uint32_t first : {0, 2}) {
      processes.push_back(std::make_unique<RankProcess>([&, first](Link& link) {
        return RunTwoGpus(daemon.socket_path(), case_, first, link, fails);
      }));
    }
    return processes;
  }
  const ExchangeCase case_{.num_ranks = 4, .num_experts = 8, .worker_executor = true};
};

TEST_F(CudaProcesses, MayHaveRanksOnSeveralGpus) {
  RunningDaemon daemon(flags_);
  auto processes = Start(daemon, /*fails=*/false);
  EXPECT_THAT(FinishAll(processes), Each(""));
}

TEST_F(CudaProcesses, WithRanksOnSeveralGpusGoOnWhenOneWorkerHasDied) {
  RunningDaemon daemon(flags_);
  auto processes = Start(daemon, /*fails=*/true);
  for (const auto& process : processes) ASSERT_EQ(process->link().Hear(), "ran");
  kill(daemon.worker_pid("cuda:1"), SIGKILL);
  EXPECT_THAT(FinishAll(processes), Each(AnyOf(StartsWith("[epd:ABORTED] group=gpu"),
                                               StartsWith("[epd:UNAVAILABLE] group=gpu"))));
}

// Whom, and on what machine.
struct Kill {
  std::string worker;
  std::string machine;
};
class CudaMemberKilled : public CudaMembers, public ::testing::WithParamInterface<Kill> {};
INSTANTIATE_TEST_SUITE_P(Each, CudaMemberKilled,
                         ::testing::Values(Kill{"cuda:0", kTwo}, Kill{"cuda:1", kTwo},
                                           Kill{"cuda:0", kTwoOfThemApart},
                                           Kill{"cuda:1", kTwoOfThemApart}),
                         [](const auto& info) {
                           return info.param.worker.substr(5) +
                                  (info.param.machine == kTwo ? "Direct" : "ByNccl");
                         });

TEST_P(CudaMemberKilled, IsATypedErrorOnEveryRankAndTheGroupGoesOnInANewEpoch) {
  setenv("EPD_FAKE_CUDA", GetParam().machine.c_str(), 1);
  const bool direct = GetParam().machine == kTwo;
  RunningDaemon daemon(flags_);
  const ExchangeCase c{.num_ranks = 4, .num_experts = 8, .worker_executor = true};
  auto ranks = StartRanks(daemon.socket_path(), c, FailAndRecover(), OnEither);
  for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "ran");
  EXPECT_EQ(gpu_.CountNcclMarks('r'), direct ? 0 : 2);
  kill(daemon.worker_pid(GetParam().worker), SIGKILL);
  EXPECT_THAT(FinishAll(ranks), Each(AnyOf(StartsWith("[epd:ABORTED] group=gpu"),
                                           StartsWith("[epd:UNAVAILABLE] group=gpu"))));
  if (direct) {
    EXPECT_EQ(gpu_.CountNcclMarks('r'), 0);
  } else {
    EXPECT_GE(gpu_.CountNcclMarks('r'), 4) << "a new communicator";
    EXPECT_GE(gpu_.CountNcclMarks('a'), 1) << "the survivor aborted the first one";
  }
}

class CudaMembersWithoutNccl : public CudaMembers {
 protected:
  const std::vector<std::string> flags_ = {"--cuda_staging_bytes=256MiB", "--cuda_devices=0,1",
                                           "--nccl_library=/none/libnccl.so.2"};
};

TEST_F(CudaMembersWithoutNccl, RowsGoDirectlyAndGoOnWhenOneWorkerHasDied) {
  RunningDaemon daemon(flags_);
  const ExchangeCase c{.num_ranks = 4, .num_experts = 8, .worker_executor = true};
  auto ranks = StartRanks(daemon.socket_path(), c, FailAndRecover(), OnEither);
  for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "ran");
  kill(daemon.worker_pid("cuda:1"), SIGKILL);
  EXPECT_THAT(FinishAll(ranks), Each(AnyOf(StartsWith("[epd:ABORTED] group=gpu"),
                                           StartsWith("[epd:UNAVAILABLE] group=gpu"))));
}

TEST_F(CudaMembersWithoutNccl, WithoutPeerAccessTheGroupIsRefusedWithBothReasons) {
  setenv("EPD_FAKE_CUDA", kTwoOfThemApart, 1);
  RunningDaemon daemon(flags_);
  const ExchangeCase c{.num_ranks = 2, .worker_executor = true};
  auto ranks = StartRanks(
      daemon.socket_path(), c, [](JoinedRank&, Link&) -> std::string { return "joined"; },
      OnEither);
  EXPECT_THAT(
      FinishAll(ranks),
      Each(AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("cuda:1 has no peer access to cuda:0"),
                 HasSubstr("cannot go by NCCL"), HasSubstr("/none/libnccl.so.2"))));
}

}  // namespace
}  // namespace epd::testing
