// Scenarios: what a world is made of and what happens in it, run by seed; and which invariant notices which planted bug.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "tests/unit/daemon/worker/world/world.h"

namespace epd::world {

// Runs in which nothing happens prove nothing: what they did, by name.
using Tally = std::map<std::string, uint64_t>;

struct SimulationResult {
  Violation violation;
  Tally tally;
  std::string options;
  std::deque<std::string> last_steps;
};

struct Scenario {
  const char* name;
  uint64_t num_seeds;  // From 1.
  void (*run)(uint64_t seed, Sabotage sabotage, bool trace, SimulationResult& result);
  Tally at_least;  // Over all seeds.
};
std::span<const Scenario> Scenarios();

struct Planted {
  const char* scenario;
  Sabotage sabotage;
  const char* name;
  const char* invariant;  // That is the first to be broken.
};
std::span<const Planted> PlantedBugs();

// One seed of a scenario; deterministic.
SimulationResult Simulate(const Scenario& scenario, uint64_t seed,
                          Sabotage sabotage = Sabotage::kNone, bool trace = false);
// The violation with its seed, the options and the last steps, for a failure.
std::string Explain(const Scenario& scenario, uint64_t seed, Sabotage sabotage = Sabotage::kNone);

}  // namespace epd::world
