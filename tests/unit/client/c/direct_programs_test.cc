// Goal: a call is published under the number that all ranks know it by, never twice, never late, and not where the
// worker has not said that it may be.
#include "client/c/direct_programs.h"

#include <gtest/gtest.h>

namespace epd::client {
namespace {

DirectPrograms::Call Call(uint64_t raw, uint32_t ordinal = 0, uint32_t rank = 0) {
  return {.rank = rank, .program = {1}, .raw_execution = raw, .ordinal = ordinal, .occurrence = 0};
}

TEST(DirectProgramsTest, NothingIsPublishedBeforeTheWorkerHasSaidSo) {
  DirectPrograms programs;
  EXPECT_FALSE(programs.Begin(Call(0)).has_value());
  programs.Learn(Call(0), {.execution = 0, .generation = 0});
  EXPECT_FALSE(programs.Begin(Call(1)).has_value()) << "generation 0 is none";
}

TEST(DirectProgramsTest, NumbersCountFromWhatTheWorkerSaid) {
  DirectPrograms programs;
  programs.Learn(Call(7), {.execution = 2, .generation = 5});
  const auto turn = programs.Begin(Call(9));
  ASSERT_TRUE(turn.has_value());
  EXPECT_EQ(turn->execution, 4u);
  EXPECT_EQ(turn->generation, 5u);
  EXPECT_FALSE(programs.Begin(Call(9, 0, /*rank=*/1)).has_value()) << "another rank's program";
}

TEST(DirectProgramsTest, ACallIsPublishedOnceAndNoneOfAnEarlierExecution) {
  DirectPrograms programs;
  programs.Learn(Call(0, 3), {.execution = 0, .generation = 1});
  EXPECT_FALSE(programs.Begin(Call(0, 3)).has_value()) << "the worker has it";
  EXPECT_TRUE(programs.Begin(Call(0, 4)).has_value());
  EXPECT_FALSE(programs.Begin(Call(0, 4)).has_value());
  EXPECT_TRUE(programs.Begin(Call(2, 4)).has_value());
  EXPECT_FALSE(programs.Begin(Call(1, 4)).has_value());
}

TEST(DirectProgramsTest, WhoMeetsNobodyTriesMoreSeldomUntilItMeets) {
  DirectPrograms programs;
  programs.Learn(Call(0), {.execution = 0, .generation = 1});
  uint64_t raw = 0;
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(programs.Begin(Call(++raw)).has_value());
    programs.Note(Call(raw), /*met=*/false);
  }
  int begun = 0;
  for (int i = 0; i < 64; ++i) begun += programs.Begin(Call(++raw)).has_value() ? 1 : 0;
  EXPECT_EQ(begun, 2);
  programs.Note(Call(raw), /*met=*/true);
  EXPECT_TRUE(programs.Begin(Call(++raw)).has_value());
}

TEST(DirectProgramsTest, RanksThatMissedAtDifferentTimesTryAgainInTheSameExecutions) {
  DirectPrograms first, second;  // Of two ranks, which count from where each has joined.
  constexpr uint64_t kLater = 5;
  first.Learn(Call(0), {.execution = 0, .generation = 1});
  second.Learn(Call(kLater), {.execution = 0, .generation = 1});
  uint64_t execution = 0;
  const auto miss = [](DirectPrograms& programs, uint64_t raw) {
    if (programs.Begin(Call(raw))) programs.Note(Call(raw), /*met=*/false);
  };
  for (int i = 0; i < 8; ++i) miss(first, ++execution);
  for (int i = 0; i < 11; ++i) miss(second, ++execution + kLater);
  int together = 0;
  for (int i = 0; i < 64; ++i) {
    ++execution;
    const bool begins = first.Begin(Call(execution)).has_value();
    EXPECT_EQ(second.Begin(Call(execution + kLater)).has_value(), begins);
    together += begins ? 1 : 0;
  }
  EXPECT_EQ(together, 2);
}

}  // namespace
}  // namespace epd::client
