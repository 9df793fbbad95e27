// Goal: the engine keeps its promises whatever order things happen in, on one worker and on several, for calls of CPUs and of
// GPUs' streams; and each planted bug breaks the invariant that is there for it, before any other.
#include "tests/unit/daemon/worker/world/simulation.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

namespace epd::world {
namespace {

uint64_t FirstSeed() {
  const char* seed = std::getenv("EPD_SIM_SEED");
  return seed == nullptr ? 1 : std::strtoull(seed, nullptr, 10);
}

class Simulation : public ::testing::TestWithParam<Scenario> {};

TEST_P(Simulation, KeepsItsInvariantsUnderEverySeed) {
  const Scenario& scenario = GetParam();
  Tally all;
  for (uint64_t seed = FirstSeed(); seed < FirstSeed() + scenario.num_seeds; ++seed) {
    const SimulationResult result = Simulate(scenario, seed);
    ASSERT_EQ(result.violation.invariant, "") << Explain(scenario, seed);
    for (const auto& [what, count] : result.tally) all[what] += count;
  }
  for (const auto& [what, count] : all) std::cout << what << ": " << count << "\n";
  for (const auto& [what, count] : scenario.at_least) EXPECT_GE(all[what], count) << what;
}

INSTANTIATE_TEST_SUITE_P(All, Simulation, ::testing::ValuesIn(Scenarios()),
                         [](const auto& test) { return std::string(test.param.name); });

class Sabotaged : public ::testing::TestWithParam<Planted> {};

TEST_P(Sabotaged, BreaksTheInvariantThatItNames) {
  for (const Scenario& scenario : Scenarios()) {
    if (std::string(scenario.name) != GetParam().scenario) continue;
    for (uint64_t seed = 1; seed <= scenario.num_seeds; ++seed) {
      const SimulationResult result = Simulate(scenario, seed, GetParam().sabotage);
      if (result.violation.invariant.empty()) continue;
      std::cout << "seed " << seed << ", " << result.violation.invariant << ": "
                << result.violation.what << "\n";
      if (result.violation.invariant == GetParam().invariant)
        return;  // Another seed may break another one.
    }
  }
  FAIL() << "no seed shows it by '" << GetParam().invariant << "'";
}

INSTANTIATE_TEST_SUITE_P(All, Sabotaged, ::testing::ValuesIn(PlantedBugs()), [](const auto& test) {
  return std::string(test.param.scenario) + test.param.name;
});

}  // namespace
}  // namespace epd::world
