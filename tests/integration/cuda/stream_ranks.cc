// Ranks on one GPU, or in turns on several, whose calls go into streams, over an epd that runs; with a real driver, tests/gpu
// starts it.
//
//   stream_ranks --socket=PATH [--ranks=4] [--processes=2] [--gpus=1] [--steps=100] [--executor=worker|client] [--only=P]
//
// With --only that process alone, for environments that differ: somebody starts the others.
// Prints {"passed": true, ...} and ends with 0, or what went wrong on each rank, and ends with 1.
#include <atomic>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/client_c/harness/rank_process.h"
#include "tests/integration/cuda/stream_rank.h"

namespace epd::testing {
namespace {

struct Options {
  std::string socket;
  uint32_t ranks = 4;
  uint32_t processes = 2;
  uint32_t gpus = 1;
  uint32_t steps = 100;
  uint32_t only = UINT32_MAX;  // A process; of a larger number: all.
  epd_executor executor = EPD_EXECUTOR_WORKER;
};

// What `argument` gives if it is "--name=...".
const char* ValueOf(const char* argument, const char* name) {
  const size_t length = std::strlen(name);
  return std::strncmp(argument, name, length) == 0 ? argument + length : nullptr;
}

bool Read(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const auto number = [&](const char* name, uint32_t* out) {
      const char* value = ValueOf(argv[i], name);
      if (value != nullptr) *out = static_cast<uint32_t>(std::strtoul(value, nullptr, 10));
      return value != nullptr;
    };
    if (number("--ranks=", &options->ranks) || number("--processes=", &options->processes) ||
        number("--gpus=", &options->gpus) || number("--steps=", &options->steps) ||
        number("--only=", &options->only)) {
      continue;
    }
    if (const char* socket = ValueOf(argv[i], "--socket="); socket != nullptr) {
      options->socket = socket;
    } else if (std::strcmp(argv[i], "--executor=client") == 0) {
      options->executor = EPD_EXECUTOR_CLIENT;
    } else if (std::strcmp(argv[i], "--executor=worker") != 0) {
      std::fprintf(stderr, "stream_ranks: what is %s?\n", argv[i]);
      return false;
    }
  }
  return !options->socket.empty() && options->processes >= 1 && options->gpus >= 1 &&
         options->processes <= options->ranks;
}

// The ranks of a process share the device's context, and what makes or takes away memory may block behind another
// rank's stream: they are made one at a time, and all are there before one of them goes on.
struct LocalRanks {
  explicit LocalRanks(uint32_t ranks) : all(ranks) {}
  std::barrier<> all;
  std::mutex one_at_a_time;
  std::atomic<bool> failed = false;  // One of them cannot begin: the others would wait for it.
};

std::string RunSteps(StreamRank& streams, const ExchangeCase& shape, uint32_t rank,
                     uint32_t steps) {
  for (uint32_t step = 0; step < steps; ++step) {
    ExchangeCase c = shape;
    c.seed = step + 1;
    const std::string problem = streams.Step(MakeExchange(c)[rank]);
    if (!problem.empty()) return "step " + std::to_string(step) + ": " + problem;
  }
  return "";
}

std::string RunRank(const Options& options, const ExchangeCase& shape, uint32_t rank,
                    LocalRanks& local) {
  JoinOptions join;
  join.group = "stream-ranks";
  join.backend = "cuda";
  const auto gpu = static_cast<int>(rank % options.gpus);
  join.device = "cuda:" + std::to_string(gpu);
  join.executor = options.executor;
  join.form_ms = 60'000;
  JoinedRank joined(options.socket, shape, rank, join);
  std::string problem = joined.problem;
  std::optional<StreamRank> streams;
  if (problem.empty()) {
    const std::lock_guard lock(local.one_at_a_time);
    problem = streams.emplace("libcuda.so.1", joined, shape, gpu).problem;
  }
  if (!problem.empty()) local.failed = true;
  local.all.arrive_and_wait();
  if (!local.failed) problem = RunSteps(*streams, shape, rank, options.steps);
  local.all.arrive_and_wait();
  streams.reset();
  local.all.arrive_and_wait();
  return problem;
}

// The ranks `process`, `process` + P, ...: a thread each. What went wrong, a line for each that has something to say.
std::string RunProcess(const Options& options, const ExchangeCase& shape, uint32_t process) {
  std::vector<std::string> problems(options.ranks);
  std::vector<std::thread> threads;
  LocalRanks local((options.ranks - process - 1) / options.processes + 1);
  for (uint32_t rank = process; rank < options.ranks; rank += options.processes) {
    threads.emplace_back([&, rank] { problems[rank] = RunRank(options, shape, rank, local); });
  }
  for (std::thread& thread : threads) thread.join();
  std::string all;
  for (uint32_t rank = 0; rank < options.ranks; ++rank) {
    if (!problems[rank].empty())
      all += "rank " + std::to_string(rank) + ": " + problems[rank] + "; ";
  }
  return all;
}

int Run(const Options& options) {
  const ExchangeCase shape{.num_ranks = options.ranks,
                           .num_experts = 4 * options.ranks,
                           .top_k = 4,
                           .hidden = 256,
                           .alignment = 8,
                           .dtype = EPD_DTYPE_BFLOAT16,
                           .routing = Routing::kSomeMissing,
                           .worker_executor = options.executor == EPD_EXECUTOR_WORKER,
                           .num_tokens = std::vector<uint32_t>(options.ranks, 64)};
  std::vector<std::unique_ptr<RankProcess>> processes;
  for (uint32_t process = 0; process < options.processes; ++process) {
    if (options.only < options.processes && process != options.only) continue;
    processes.push_back(std::make_unique<RankProcess>(
        [&, process](Link&) { return RunProcess(options, shape, process); }));
  }
  constexpr double kSeconds =
      80;  // Less than tests/gpu/parts.py allows: who does not end is named.
  std::string problems;
  for (const std::string& problem : FinishAll(processes, kSeconds)) problems += problem;
  if (!problems.empty()) {
    std::fprintf(stderr, "%s\n", problems.c_str());
    return 1;
  }
  std::printf("{\"passed\": true, \"ranks\": %u, \"processes\": %u, \"steps\": %u}\n",
              options.ranks, options.processes, options.steps);
  return 0;
}

}  // namespace
}  // namespace epd::testing

int main(int argc, char** argv) {
  epd::testing::Options options;
  return epd::testing::Read(argc, argv, &options) ? epd::testing::Run(options) : 2;
}
