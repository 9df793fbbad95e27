// Goal: what an operation asks of a device, counted and not timed, stays as it is until somebody changes it on purpose:
// launches, words that a stream waits for, bytes that the driver copies and fills, and turns. Work of two processes on one device
// takes turns of 150 us each; a process that only waits takes none.
//
// daemon/backend/README.md has the numbers, too. A rank that has a device to itself is to come to 0 turns, to 1 word of a
// prepare, and to 3 launches of each operation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/integration/cuda/on_cuda.h"
#include "tests/integration/cuda/stream_rank.h"
#include "tests/integration/cuda/stream_steps.h"

namespace epd::testing {
namespace {

using ::testing::Each;

// What all processes' streams did in one operation of all ranks.
struct WorkCount {
  int launches = 0;
  int by_worker = 0;  // Of the launches.
  int words = 0;      // Waited for.
  uint64_t copied_bytes = 0;
  uint64_t filled_bytes = 0;
  int turns = 0;  // Work of another process than the last one on that device.

  bool operator==(const WorkCount&) const = default;
};

std::ostream& operator<<(std::ostream& out, const WorkCount& w) {
  return out << w.launches << " launches, " << w.by_worker << " by workers, " << w.words
             << " words, " << w.copied_bytes << " bytes copied, " << w.filled_bytes << " filled, "
             << w.turns << " turns";
}

// Counts the lines from `begin` on; those before say who ran last.
WorkCount Count(const std::string& lines, size_t begin) {
  WorkCount work;
  std::map<int, pid_t> last;  // By device.
  std::istringstream text(lines);
  for (std::string line; std::getline(text, line);) {
    const bool counts = text.eof() || static_cast<size_t>(text.tellg()) > begin;
    std::istringstream words(line);
    pid_t pid = 0;
    int device = 0;
    uint64_t bytes = 0;
    std::string program, what;
    words >> pid >> program >> device >> what;
    const bool is_kernel = what == "kernel";
    const bool is_work = is_kernel || what == "copy" || what == "fill";
    const bool is_turn = is_work && last.contains(device) && last[device] != pid;
    if (is_work) last[device] = pid;
    if (!counts) continue;
    if (what == "copy" || what == "fill") words >> bytes;
    work.launches += is_kernel ? 1 : 0;
    work.by_worker += is_kernel && program == "epd-worker" ? 1 : 0;
    work.turns += is_turn ? 1 : 0;
    work.words += what == "wait" ? 1 : 0;
    work.copied_bytes += what == "copy" ? bytes : 0;
    work.filled_bytes += what == "fill" ? bytes : 0;
  }
  return work;
}

TEST(WorkCountTest, CountsWhatComesBehindTheMarkAndTurnsOfEachDevice) {
  const std::string before = "1 rank 0 kernel a\n1 rank 1 kernel a\n1 rank 0 wait\n";
  const std::string behind =
      "2 epd-worker 0 copy 24\n2 epd-worker 0 kernel b\n1 rank 1 kernel a\n1 rank 0 fill 8\n"
      "1 rank 0 wait\n1 rank 0 kernel a\n2 epd-worker 0 write\n1 rank 0 kernel a\n";
  EXPECT_EQ(Count(before + behind, before.size()), (WorkCount{4, 1, 1, 24, 8, 2}));
  EXPECT_EQ(Count(before + behind, before.size() + behind.size()), WorkCount{});
}

// Replays the call that it hears the number of, with other rows and routes in each step, until it hears something else.
std::string Obey(JoinedRank& joined, const ExchangeCase& c, int device, Link& link) {
  StreamRank streams(FakeGpu::Library(), joined, c, device);
  std::string problem = streams.problem;
  if (problem.empty()) problem = streams.Capture();
  link.Say(problem.empty() ? "done" : problem);
  uint32_t step = 0;
  RankData data;
  for (std::string word = link.Hear(); problem.empty() && word != "end"; word = link.Hear()) {
    const auto call = static_cast<size_t>(word[0] - '0');
    if (call == 0) {
      data = DataOf(c, joined.rank->rank(), ++step);
      streams.Load(data);
    }
    problem = streams.Rerun(call, call + 1);
    if (problem.empty() && call + 1 == StreamRank::kNumCalls) problem = streams.Compare(data);
    link.Say(problem.empty() ? "done" : problem);
  }
  return problem;
}

struct Way {
  const char* name;
  uint32_t num_devices;  // And ranks, one on each.
  epd_executor executor;
  WorkCount prepare, dispatch, combine;  // Of all ranks together.

  friend void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }
};

class OperationWork : public OnFakeGpu, public ::testing::WithParamInterface<Way> {
 protected:
  static void TellAll(const std::vector<std::unique_ptr<RankProcess>>& ranks,
                      const std::string& word) {
    for (const auto& rank : ranks) rank->link().Say(word);
    for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "done");
  }
};

TEST_P(OperationWork, IsTheSameInEachReplay) {
  const Way& way = GetParam();
  const std::string machine = "work=1 devices=" + std::to_string(way.num_devices);
  setenv("EPD_FAKE_CUDA", machine.c_str(), 1);
  RunningDaemon daemon({"--cuda_staging_bytes=256MiB"});
  const ExchangeCase c{.num_ranks = way.num_devices,
                       .num_experts = 32,
                       .top_k = 8,
                       .hidden = 64,
                       .dtype = EPD_DTYPE_BFLOAT16,
                       .worker_executor = way.executor == EPD_EXECUTOR_WORKER,
                       .num_tokens = std::vector<uint32_t>(way.num_devices, 128)};
  auto ranks = StartRanks(
      daemon.socket_path(), c,
      [&](JoinedRank& joined, Link& link) {
        const uint32_t rank = joined.rank->rank();
        return Obey(joined, c, static_cast<int>(rank % way.num_devices), link);
      },
      [&](uint32_t rank) {
        JoinOptions options = OnOneOf(way.num_devices, rank);
        options.executor = way.executor;
        return options;
      });
  for (const auto& rank : ranks) ASSERT_EQ(rank->link().Hear(), "done");
  constexpr int kSteps = 5;
  for (int step = 0; step < kSteps; ++step) {
    for (size_t call = 0; call < StreamRank::kNumCalls; ++call) {
      const size_t begin = gpu_.Work().size();
      TellAll(ranks, std::to_string(call));
      if (HasFatalFailure()) return;
      // The first step uploads what later ones find.
      if (step == 0 || call > 2) continue;
      const WorkCount* const expected[] = {&way.prepare, &way.dispatch, &way.combine};
      const std::string work = gpu_.Work();
      EXPECT_EQ(Count(work, begin), *expected[call])
          << "call " << call << " of step " << step << ":\n"
          << work.substr(begin);
    }
  }
  for (const auto& rank : ranks) rank->link().Say("end");
  EXPECT_THAT(FinishAll(ranks), Each(""));
}

// Launches, of them by workers, words, bytes copied and filled, turns.
INSTANTIATE_TEST_SUITE_P(Ways, OperationWork,
                         ::testing::Values(Way{"OneRankByTheWorker",
                                               1,
                                               EPD_EXECUTOR_WORKER,
                                               {13, 1, 2, 72, 136, 2},
                                               {15, 7, 2, 656, 8, 2},
                                               {12, 6, 2, 512, 8, 2}},
                                           Way{"OneRankByItself",
                                               1,
                                               EPD_EXECUTOR_CLIENT,
                                               {12, 0, 2, 8, 136, 0},
                                               {9, 0, 2, 104, 8, 0},
                                               {10, 0, 2, 104, 8, 0}},
                                           Way{"ARankOnEachOfTwo",
                                               2,
                                               EPD_EXECUTOR_WORKER,
                                               {26, 2, 4, 208, 144, 4},
                                               {30, 14, 4, 1920, 32, 4},
                                               {24, 12, 4, 1472, 32, 4}}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace epd::testing
