// Long runs of the simulator: sim --seeds=100000 --events=1000; replay: sim --first=<seed>
// --seeds=1 --verbose. With --whole the data plane runs in it, too.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/sim/options.h"

namespace {

bool Flag(const char* arg, const char* name, uint64_t* value) {
  const size_t n = std::strlen(name);
  if (std::strncmp(arg, name, n) != 0 || arg[n] != '=') return false;
  *value = std::strtoull(arg + n + 1, nullptr, 10);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t first = 1, seeds = 10000, events = 200, bug = 0, nodes = 0, sabotage = 0;
  bool verbose = false, stops = false, freezes = false, whole = false;
  for (int i = 1; i < argc; ++i) {
    const char* arg = argv[i];
    if (std::strcmp(arg, "--verbose") == 0) {
      verbose = true;
    } else if (std::strcmp(arg, "--stops") == 0) {
      stops = true;
    } else if (std::strcmp(arg, "--freezes") == 0) {
      freezes = true;
    } else if (std::strcmp(arg, "--whole") == 0) {
      whole = true;
    } else if (!Flag(arg, "--first", &first) && !Flag(arg, "--seeds", &seeds) &&
               !Flag(arg, "--events", &events) && !Flag(arg, "--bug", &bug) &&
               !Flag(arg, "--nodes", &nodes) && !Flag(arg, "--sabotage", &sabotage)) {
      std::fprintf(stderr,
                   "usage: sim [--first=1] [--seeds=10000] [--events=200] [--bug=0] [--stops] "
                   "[--freezes] "
                   "[--whole [--nodes=0] [--sabotage=0]] [--verbose]\n");
      return 2;
    }
  }
  const auto start = std::chrono::steady_clock::now();
  long steps = 0, ready = 0, reformed = 0, failed = 0, good_calls = 0, failed_calls = 0;
  int max_nodes = 0;
  absl::Duration simulated;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    epd::sim::Options options;
    options.seed = seed;
    options.events = static_cast<int>(events);
    options.bug = static_cast<epd::sim::Bug>(bug);
    options.verbose = verbose;
    options.stops = stops;
    options.freezes = freezes;
    options.whole = whole;
    options.num_nodes = static_cast<int>(nodes);
    options.sabotage = static_cast<epd::world::Sabotage>(sabotage);
    const epd::sim::Outcome outcome = epd::sim::Simulate(options);
    steps += outcome.steps;
    ready += outcome.num_ready;
    reformed += outcome.num_reformed;
    failed += outcome.num_failed_joins;
    good_calls += outcome.num_good_calls;
    failed_calls += outcome.num_failed_calls;
    simulated += outcome.simulated;
    max_nodes = std::max(max_nodes, outcome.num_nodes);
    if (!outcome.violation.empty()) {
      options.trace = !verbose;
      if (!verbose) {
        for (const std::string& step : epd::sim::Simulate(options).last_steps)
          std::printf("%s\n", step.c_str());
      }
      std::printf("seed %llu: %s\nreplay: sim --first=%llu --seeds=1 --events=%llu --bug=%llu",
                  static_cast<unsigned long long>(seed), outcome.violation.c_str(),
                  static_cast<unsigned long long>(seed), static_cast<unsigned long long>(events),
                  static_cast<unsigned long long>(bug));
      if (whole) {
        std::printf(" --whole --nodes=%llu --sabotage=%llu", static_cast<unsigned long long>(nodes),
                    static_cast<unsigned long long>(sabotage));
      }
      std::printf("%s%s --verbose\n", stops ? " --stops" : "", freezes ? " --freezes" : "");
      return 1;
    }
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf(
      "%llu seeds, %ld steps, %ld times READY, %ld of them again, %ld failed joins, %.1f s: all "
      "held\n",
      static_cast<unsigned long long>(seeds), steps, ready, reformed, failed, seconds);
  std::printf("%.1f hours simulated, up to %d nodes, %ld good calls, %ld failed calls\n",
              absl::ToDoubleHours(simulated), max_nodes, good_calls, failed_calls);
  return 0;
}
