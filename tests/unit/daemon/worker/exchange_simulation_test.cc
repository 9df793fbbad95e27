// Goal: the engine keeps its promises whatever order things happen in, and the simulation that says
// so notices each of them being broken.
#include "tests/unit/daemon/worker/exchange_simulation.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <string>

namespace epd {
namespace {

constexpr int kSeeds = 1500;
constexpr int kEvents = 200;

uint64_t FirstSeed() {
  const char* seed = std::getenv("EPD_SIM_SEED");
  return seed == nullptr ? 1 : std::strtoull(seed, nullptr, 10);
}

TEST(ExchangeSimulation, KeepsItsInvariantsUnderEverySeed) {
  uint64_t num_good = 0;
  uint64_t num_failed = 0;
  for (uint64_t seed = FirstSeed(); seed < FirstSeed() + kSeeds; ++seed) {
    const SimulationResult result = SimulateExchange(seed, kEvents, Sabotage::kNone);
    ASSERT_EQ(result.violation, "") << "EPD_SIM_SEED=" << seed;
    num_good += result.num_good;
    num_failed += result.num_failed;
  }
  EXPECT_GT(num_good, uint64_t{kSeeds}) << "hardly any call ends well: the simulation is too rough";
  EXPECT_GT(num_failed, uint64_t{kSeeds}) << "hardly any call fails: the simulation is too tame";
  std::cout << "calls: " << num_good << " good, " << num_failed << " failed\n";
}

struct Planted {
  Sabotage sabotage;
  const char* name;
};
std::string NameOf(const ::testing::TestParamInfo<Planted>& param) { return param.param.name; }

class ExchangeSimulationFinds : public ::testing::TestWithParam<Planted> {};

TEST_P(ExchangeSimulationFinds, ABrokenPromise) {
  for (uint64_t seed = FirstSeed(); seed < FirstSeed() + kSeeds; ++seed) {
    const SimulationResult result = SimulateExchange(seed, kEvents, GetParam().sabotage);
    if (result.violation.empty()) continue;
    std::cout << "seed " << seed << ", " << result.violation << "\n";
    return;
  }
  FAIL() << "not noticed in " << kSeeds << " seeds";
}

INSTANTIATE_TEST_SUITE_P(
    All, ExchangeSimulationFinds,
    ::testing::Values(Planted{Sabotage::kDropAnswer, "DropAnswer"},
                      Planted{Sabotage::kDoubleAnswer, "DoubleAnswer"},
                      Planted{Sabotage::kFlipOutcome, "FlipOutcome"},
                      Planted{Sabotage::kOtherCause, "OtherCause"},
                      Planted{Sabotage::kDecideTwice, "DecideTwice"},
                      Planted{Sabotage::kAnswerUndecided, "AnswerUndecided"},
                      Planted{Sabotage::kSharedRegion, "SharedRegion"},
                      Planted{Sabotage::kForgetDeadlines, "ForgetDeadlines"},
                      Planted{Sabotage::kLoseRecord, "LoseRecord"},
                      Planted{Sabotage::kForgetProcess, "ForgetProcess"},
                      Planted{Sabotage::kKeepArenas, "KeepArenas"},
                      Planted{Sabotage::kShareArenas, "ShareArenas"},
                      Planted{Sabotage::kSpreadDeath, "SpreadDeath"},
                      Planted{Sabotage::kForgetEagerBuffers, "ForgetEagerBuffers"},
                      Planted{Sabotage::kLateEagerBuffers, "LateEagerBuffers"},
                      Planted{Sabotage::kWrongEagerBuffer, "WrongEagerBuffer"},
                      Planted{Sabotage::kEarlyPulled, "EarlyPulled"},
                      Planted{Sabotage::kRegionInEagerBuffers, "RegionInEagerBuffers"},
                      Planted{Sabotage::kForgetEnded, "ForgetEnded"}),
    NameOf);

}  // namespace
}  // namespace epd
