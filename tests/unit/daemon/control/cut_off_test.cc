// Goal: after a cut all staying ranks agree on what is logical execution 0 of each program.
#include "daemon/control/cut_off.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace epd {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr ProgramId kA = {1};
constexpr ProgramId kB = {2};
constexpr Rank kR0{0}, kR1{1}, kR2{2};

TEST(CutOffTest, ARankThatIsBehindAndDoesNotKnowFailsOnce) {
  EXPECT_THAT(*CutOff({{kR0, kA, 5}, {kR1, kA, 7}}, {}, {kR0, kR1}),
              ElementsAre(ExecutionBase{kR0, kA, 6}, ExecutionBase{kR1, kA, 7}));
}

TEST(CutOffTest, RanksThatKnowMeetAtOnceHoweverOftenOneHasTried) {
  EXPECT_THAT(*CutOff({{kR0, kA, 8, true}, {kR1, kA, 2007, true}}, {}, {kR0, kR1}),
              ElementsAre(ExecutionBase{kR0, kA, 8}, ExecutionBase{kR1, kA, 2007}));
}

TEST(CutOffTest, ARankThatHasNotBegunTheProgramIsOneCallAwayToo) {
  EXPECT_THAT(*CutOff({{kR0, kA, 3}}, {}, {kR0, kR1}),
              ElementsAre(ExecutionBase{kR0, kA, 3}, ExecutionBase{kR1, kA, 1}));
}

TEST(CutOffTest, ANewSessionCountsFromZero) {
  EXPECT_THAT(*CutOff({{kR0, kA, 3}, {kR2, kA, 9}}, {{kR2, kA, 4}}, {kR0}),
              ElementsAre(ExecutionBase{kR0, kA, 3}));
}

TEST(CutOffTest, LogicalNumbersCountFromTheOldBase) {
  // Rank 0 stayed, so it has base 3; rank 1 was new then. Both have run 2 since.
  EXPECT_THAT(*CutOff({{kR0, kA, 5}, {kR1, kA, 2}}, {{kR0, kA, 3}}, {kR0, kR1}),
              ElementsAre(ExecutionBase{kR0, kA, 5}, ExecutionBase{kR1, kA, 2}));
}

TEST(CutOffTest, ARankThatHasNotFailedYetWhereItShouldStillFailsOnce) {
  EXPECT_THAT(*CutOff({{kR0, kA, 3}, {kR1, kA, 4}}, {{kR0, kA, 4}, {kR1, kA, 4}}, {kR0, kR1}),
              ElementsAre(ExecutionBase{kR0, kA, 4}, ExecutionBase{kR1, kA, 4}));
}

TEST(CutOffTest, ProgramsAreCutApart) {
  EXPECT_THAT(*CutOff({{kR0, kA, 1}, {kR1, kB, 2}}, {}, {kR0, kR1}),
              ElementsAre(ExecutionBase{kR0, kA, 1}, ExecutionBase{kR0, kB, 1},
                          ExecutionBase{kR1, kA, 1}, ExecutionBase{kR1, kB, 2}));
}

// The rule as the header says it, of each staying rank and each program.
std::vector<ExecutionBase> CutByTheRule(const std::vector<ExecutionCount>& counts,
                                        const std::vector<ExecutionBase>& bases,
                                        const std::vector<Rank>& staying, uint8_t num_programs) {
  std::vector<ExecutionBase> out;
  for (uint8_t p = 0; p < num_programs; ++p) {
    std::map<Rank, uint64_t> base, begun;
    std::set<Rank> failed;
    for (const ExecutionBase& b : bases)
      if (b.program == ProgramId{p}) base[b.rank] = b.base;
    for (const ExecutionCount& c : counts) {
      if (c.program == ProgramId{p}) begun[c.rank] = c.begun;
      if (c.failed) failed.insert(c.rank);
    }
    uint64_t furthest = 0;
    for (const Rank r : staying)
      furthest = std::max(furthest, begun[r] - std::min(begun[r], base[r]));
    for (const Rank r : staying) {
      const bool knows = failed.contains(r) || begun[r] == base[r] + furthest;
      const uint64_t next = begun[r] + (knows ? 0 : 1);
      if (next != 0) out.push_back({r, ProgramId{p}, next});
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

TEST(CutOffTest, IsWhatTheRuleSaysWhateverIsListed) {
  constexpr uint8_t kPrograms = 5;
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](uint32_t end) { return random() % end; };
    std::vector<ExecutionCount> counts;
    std::vector<ExecutionBase> bases;
    std::vector<Rank> staying;
    for (const Rank rank : {kR2, kR0, Rank{3}, kR1}) {
      if (below(4) != 0) staying.push_back(rank);
      const bool failed = below(3) == 0;
      for (uint8_t p = 0; p < kPrograms; ++p) {
        if (below(2) == 0) bases.push_back({rank, ProgramId{p}, 1 + below(4)});
        if (below(3) != 0) counts.push_back({rank, ProgramId{p}, below(6), failed});
      }
    }
    EXPECT_EQ(*CutOff(counts, bases, staying), CutByTheRule(counts, bases, staying, kPrograms))
        << "seed " << seed;
  }
}

TEST(CutOffTest, MoreBasesThanAStartCarriesAreRefused) {
  std::vector<Rank> staying;
  for (uint32_t r = 0; r < 1000; ++r) staying.push_back(Rank(r));
  std::vector<ExecutionCount> counts;
  for (uint8_t p = 0; p < 12; ++p) counts.push_back({kR0, ProgramId{p}, 1});
  ASSERT_EQ(CutOff(counts, {}, staying)->size(), kMaxExecutionBases);
  counts.push_back({kR0, ProgramId{12}, 1});
  EXPECT_TRUE(absl::IsResourceExhausted(CutOff(counts, {}, staying).status()));
}

TEST(CutOffTest, NothingBegunNothingCut) { EXPECT_THAT(*CutOff({}, {}, {kR0, kR1}), IsEmpty()); }

}  // namespace
}  // namespace epd
