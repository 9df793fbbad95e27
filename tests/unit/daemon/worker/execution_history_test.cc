// Goal: a rank that comes late to an execution gets, at once, the cause that the others got, and
// the first execution above a cut-off is the same on all ranks.
#include "daemon/worker/engine/execution_history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace epd {
namespace {

constexpr ProgramId kA = {1};
constexpr ProgramId kB = {2};
constexpr ProgramId kNamed = {3};
const absl::Status kBadInput = absl::InvalidArgumentError("bad index");
const absl::Status kLate = absl::DeadlineExceededError("rank 1 is late");
const absl::Status kReformed = absl::AbortedError("re-formed");

class Book : public ::testing::Test {
 protected:
  absl::Status Enter(uint32_t rank, uint64_t raw, const ProgramId& program = kA,
                     bool named = false) {
    return book_.Enter(Rank(rank), program, named, raw).status();
  }
  void Begin(uint32_t rank, uint64_t raw) { EXPECT_EQ(Enter(rank, raw), absl::OkStatus()); }
  bool Fail(uint64_t number, bool named = false) {
    return book_.Fail({kA, number}, named, kBadInput, {Rank(0), Rank(1)});
  }
  ExecutionHistory book_{2, {{.rank = Rank(1), .program = kB, .base = 10}}, kReformed};
};

TEST_F(Book, NumbersCountFromTheBase) {
  EXPECT_EQ(Enter(1, 9, kB), kReformed);
  EXPECT_EQ(book_.Enter(Rank(1), kB, false, 10)->number, 0u);
  EXPECT_EQ(book_.Enter(Rank(0), kB, false, 0)->number, 0u);
}

TEST_F(Book, FailedExecutionFailsOnEveryRankUntilItHasPassed) {
  Begin(0, 3);
  Fail(3);
  EXPECT_EQ(Enter(0, 3), kBadInput);
  EXPECT_EQ(Enter(1, 3), kBadInput);
  EXPECT_EQ(Enter(1, 2), absl::OkStatus());
  EXPECT_EQ(Enter(0, 4), absl::OkStatus());
  EXPECT_EQ(book_.num_failed_remembered(), 1u) << "rank 1 may still come";
  EXPECT_EQ(Enter(1, 4), absl::OkStatus());
  EXPECT_EQ(book_.num_failed_remembered(), 0u);
}

TEST_F(Book, NamesAreForgottenOneByOne) {
  Fail(3, /*named=*/true);
  EXPECT_EQ(Enter(0, 9, kA, true), absl::OkStatus());
  EXPECT_EQ(Enter(0, 3, kA, true), kBadInput);
  EXPECT_EQ(Enter(1, 3, kA, true), kBadInput);
  EXPECT_EQ(book_.num_failed_remembered(), 0u);
}

TEST_F(Book, GenerationEndsUpToTheHighestThatAnyRankHasBegun) {
  Begin(0, 5);
  Begin(1, 2);
  book_.EndGeneration(kLate);
  EXPECT_EQ(book_.generation(), 1u);
  EXPECT_EQ(Enter(1, 3), kLate);
  EXPECT_EQ(Enter(1, 5), kLate);
  EXPECT_EQ(Enter(1, 6), absl::OkStatus());
  EXPECT_EQ(Enter(0, 0, kB), absl::OkStatus()) << "a program that nobody had begun";
}

TEST_F(Book, EveryGenerationKeepsItsCauseAndAFailedExecutionItsOwn) {
  Begin(0, 1);
  Fail(1);
  book_.EndGeneration(kLate);
  Begin(0, 4);
  book_.EndGeneration(kReformed);
  EXPECT_EQ(Enter(1, 0), kLate);
  EXPECT_EQ(Enter(1, 1), kBadInput);
  EXPECT_EQ(Enter(1, 4), kReformed);
}

TEST_F(Book, AfterDivergenceNoRankIsToldOfWhatOthersBegan) {
  Begin(0, 5);
  Begin(1, 2);
  EXPECT_EQ(Enter(1, 13, kNamed, /*named=*/true), absl::OkStatus());
  book_.EndDivergedGeneration(kLate);
  EXPECT_EQ(Enter(0, 5), kLate) << "a call of what has failed";
  EXPECT_EQ(Enter(1, 2), kLate);
  EXPECT_EQ(book_.Enter(Rank(0), kA, false, 6)->number, 6u);
  EXPECT_EQ(book_.Enter(Rank(1), kA, false, 3)->number, 6u);
  EXPECT_EQ(Enter(0, 13, kNamed, true), kLate) << "names are counted by their users";
  Begin(1, 4);
  book_.EndDivergedGeneration(kLate);
  EXPECT_EQ(book_.Enter(Rank(0), kA, false, 7)->number, 8u);
  EXPECT_EQ(book_.Enter(Rank(1), kA, false, 5)->number, 8u);
}

TEST_F(Book, ACauseIsGivenOnce) {
  Fail(1);
  book_.Fail({kA, 1}, false, kLate, {Rank(0)});
  EXPECT_EQ(Enter(0, 1), kBadInput);
}

TEST_F(Book, ImpossibleNumbersAreRefused) {
  EXPECT_EQ(Enter(0, UINT64_MAX).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(Book, TooManyProgramsAreRefusedAndKnownOnesGoOn) {
  ProgramId program = {};
  for (size_t i = 0; i + 1 < kMaxPrograms; ++i) {
    program[4] = static_cast<uint8_t>(i);
    program[5] = static_cast<uint8_t>(i >> 8);
    program[6] = 1;
    ASSERT_EQ(Enter(0, 0, program), absl::OkStatus()) << i;
  }
  EXPECT_EQ(Enter(0, 0, {9, 9}).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Enter(0, 1, program), absl::OkStatus());
}

TEST_F(Book, TooManyFailuresAskForTheEndOfTheGenerationWhichForgetsThem) {
  for (uint64_t n = 0; n < kMaxFailedExecutions; ++n) ASSERT_TRUE(Fail(n, true)) << n;
  EXPECT_FALSE(Fail(kMaxFailedExecutions, true));
  book_.EndGeneration(kLate);
  EXPECT_EQ(book_.num_failed_remembered(), 0u);
}

}  // namespace
}  // namespace epd
