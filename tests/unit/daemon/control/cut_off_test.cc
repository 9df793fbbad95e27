// Goal: after a cut all staying ranks agree on what is logical execution 0 of each program.
#include "daemon/control/cut_off.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace epd {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr ProgramId kA = {1};
constexpr ProgramId kB = {2};
constexpr Rank kR0{0}, kR1{1}, kR2{2};

TEST(CutOffTest, ARankThatIsBehindAndDoesNotKnowFailsOnce) {
  EXPECT_THAT(CutOff({{kR0, kA, 5}, {kR1, kA, 7}}, {}, {kR0, kR1}),
              ElementsAre(ExecutionBase{kR0, kA, 6}, ExecutionBase{kR1, kA, 7}));
}

TEST(CutOffTest, RanksThatKnowMeetAtOnceHoweverOftenOneHasTried) {
  EXPECT_THAT(CutOff({{kR0, kA, 8, true}, {kR1, kA, 2007, true}}, {}, {kR0, kR1}),
              ElementsAre(ExecutionBase{kR0, kA, 8}, ExecutionBase{kR1, kA, 2007}));
}

TEST(CutOffTest, ARankThatHasNotBegunTheProgramIsOneCallAwayToo) {
  EXPECT_THAT(CutOff({{kR0, kA, 3}}, {}, {kR0, kR1}),
              ElementsAre(ExecutionBase{kR0, kA, 3}, ExecutionBase{kR1, kA, 1}));
}

TEST(CutOffTest, ANewSessionCountsFromZero) {
  EXPECT_THAT(CutOff({{kR0, kA, 3}, {kR2, kA, 9}}, {{kR2, kA, 4}}, {kR0}),
              ElementsAre(ExecutionBase{kR0, kA, 3}));
}

TEST(CutOffTest, LogicalNumbersCountFromTheOldBase) {
  // Rank 0 stayed, so it has base 3; rank 1 was new then. Both have run 2 since.
  EXPECT_THAT(CutOff({{kR0, kA, 5}, {kR1, kA, 2}}, {{kR0, kA, 3}}, {kR0, kR1}),
              ElementsAre(ExecutionBase{kR0, kA, 5}, ExecutionBase{kR1, kA, 2}));
}

TEST(CutOffTest, ARankThatHasNotFailedYetWhereItShouldStillFailsOnce) {
  EXPECT_THAT(CutOff({{kR0, kA, 3}, {kR1, kA, 4}}, {{kR0, kA, 4}, {kR1, kA, 4}}, {kR0, kR1}),
              ElementsAre(ExecutionBase{kR0, kA, 4}, ExecutionBase{kR1, kA, 4}));
}

TEST(CutOffTest, ProgramsAreCutApart) {
  EXPECT_THAT(CutOff({{kR0, kA, 1}, {kR1, kB, 2}}, {}, {kR0, kR1}),
              ElementsAre(ExecutionBase{kR0, kA, 1}, ExecutionBase{kR0, kB, 1},
                          ExecutionBase{kR1, kA, 1}, ExecutionBase{kR1, kB, 2}));
}

TEST(CutOffTest, NothingBegunNothingCut) { EXPECT_THAT(CutOff({}, {}, {kR0, kR1}), IsEmpty()); }

}  // namespace
}  // namespace epd
