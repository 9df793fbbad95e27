// Goal: no interleaving of client, worker, a ghost of a replaced worker and poisoners completes the
// wrong use, leaves a use open for ever, or loses a wake; and the walk that shows it can fail.
#include "proto/epd/v1/slot_word.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "tests/unit/proto/slot_word_model.h"

namespace epd {
namespace {

TEST(SlotWord, ValuesAreDistinct) {
  EXPECT_EQ(shm::Ready(shm::kArmed), 1u);
  EXPECT_EQ(shm::Done(shm::kArmed), 0u);
  EXPECT_EQ(shm::Ready(shm::Claimed(7)), 7u);
  EXPECT_EQ(shm::Ready(shm::Answered(4)), 0u);
  EXPECT_EQ(shm::AnswerCode(shm::Answered(4)), 4u);
  EXPECT_EQ(shm::AnswerCode(shm::Answered(0)), 0u);
}

TEST(SlotWord, PoisonLeavesAnEndedUseAlone) {
  std::atomic<uint64_t> word(shm::Answered(0));
  EXPECT_FALSE(shm::Poison(word, word.load(), 10));
  EXPECT_EQ(word.load(), shm::Answered(0));
}

TEST(SlotWordWalk, EveryInterleavingOfThreeUsesKeepsTheInvariants) {
  const WalkResult result = WalkSlotWord(/*num_uses=*/3, /*num_poisons=*/2, PlantedBug::kNone);
  EXPECT_EQ(result.violation, "");
  EXPECT_GT(result.num_states, 10'000u) << "the walk has not walked";
  EXPECT_GT(result.num_ends, 0u);
  RecordProperty("num_states", std::to_string(result.num_states));
}

struct Planted {
  PlantedBug bug;
  const char* name;
};
std::string NameOf(const ::testing::TestParamInfo<Planted>& param) { return param.param.name; }

class SlotWordWalkFinds : public ::testing::TestWithParam<Planted> {};

TEST_P(SlotWordWalkFinds, APlantedBug) {
  const WalkResult result = WalkSlotWord(/*num_uses=*/2, /*num_poisons=*/1, GetParam().bug);
  EXPECT_NE(result.violation, "") << "not found in " << result.num_states << " states";
}

INSTANTIATE_TEST_SUITE_P(
    All, SlotWordWalkFinds,
    ::testing::Values(Planted{PlantedBug::kReusedIds, "ReusedIds"},
                      Planted{PlantedBug::kAnswerWithoutCompare, "AnswerWithoutCompare"},
                      Planted{PlantedBug::kSeparateEpoch, "SeparateEpoch"},
                      Planted{PlantedBug::kNoRescan, "NoRescan"},
                      Planted{PlantedBug::kRingBeforeArm, "RingBeforeArm"},
                      Planted{PlantedBug::kNoFenceAsleep, "NoFenceAsleep"},
                      Planted{PlantedBug::kNoFenceSleeping, "NoFenceSleeping"},
                      Planted{PlantedBug::kWakeBeforeAnswer, "WakeBeforeAnswer"},
                      Planted{PlantedBug::kNoPoisonAfterDeath, "NoPoisonAfterDeath"},
                      Planted{PlantedBug::kNoWakeAfterDeath, "NoWakeAfterDeath"},
                      Planted{PlantedBug::kPoisonWithoutCompare, "PoisonWithoutCompare"}),
    NameOf);

}  // namespace
}  // namespace epd
