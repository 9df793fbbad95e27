// Goal: a rank that comes late to an execution gets, at once, the cause that the others got, and
// the first execution above a cut-off is the same on all ranks.
#include "daemon/worker/engine/execution_history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"

namespace epd {
namespace {

using testing::HasSubstr;

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
  bool Fail(uint64_t number) { return book_.Fail({kA, number}, kBadInput, {true, true}); }
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
  Fail(3);
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
  book_.Fail({kA, 1}, kLate, {true, false});
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
  for (uint64_t n = 0; n < kMaxFailedExecutions; ++n) ASSERT_TRUE(Fail(n)) << n;
  EXPECT_FALSE(Fail(kMaxFailedExecutions));
  book_.EndGeneration(kLate);
  EXPECT_EQ(book_.num_failed_remembered(), 0u);
}

TEST_F(Book, ARankThatIsManyGenerationsBehindLearnsALaterCause) {
  Begin(0, 0);
  for (size_t n = 0; n <= kMaxCauses; ++n)
    book_.EndGeneration(absl::AbortedError(absl::StrCat("end ", n)));
  EXPECT_EQ(Enter(1, 0), absl::AbortedError("end 1"));
}

ProgramId Numbered(uint32_t n) {
  return {static_cast<uint8_t>(n), static_cast<uint8_t>(n >> 8), 7};
}

TEST(ExecutionHistoryMemoryTest, FourThousandProgramsOfTwoThousandRanksAreServed) {
  constexpr uint32_t kRanks = 2048;
  ExecutionHistory history(kRanks, {}, kReformed);
  for (uint32_t n = 0; n < 4096; ++n) {
    for (const uint32_t rank : {0u, 1u, kRanks - 1})
      ASSERT_EQ(history.Enter(Rank(rank), Numbered(n), false, 0).status(), absl::OkStatus()) << n;
  }
  EXPECT_LE(history.bytes(), kMaxProgramBytes / 3);
}

TEST(ExecutionHistoryMemoryTest, WhatIsTooMuchForATenantIsRefusedAndKnownProgramsGoOn) {
  constexpr uint32_t kRanks = 2048;
  ExecutionHistory history(kRanks, {}, kReformed);
  absl::Status refused;
  uint32_t n = 0;
  // The first number of each is far from the others', so that every one takes 8 bytes.
  while (refused.ok() && n < kMaxPrograms)
    refused = history.Enter(Rank(0), Numbered(n++), false, kMaxExecution - 9).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("programs and names of 2048 ranks take"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr(absl::StrCat(kMaxProgramBytes)));
  EXPECT_EQ(history.Enter(Rank(1), Numbered(0), false, 0).status(), absl::OkStatus());
  for (uint64_t i = 0; i < 300; ++i) {
    history.EndDivergedGeneration(kLate);
    for (uint32_t known = 0; known < n; ++known)
      (void)history.Enter(Rank(i % 7), Numbered(known), false, kMaxExecution - 8 + i % 7);
    ASSERT_LE(history.bytes(), 2 * kMaxProgramBytes + (size_t{1} << 20)) << i;
  }
}

TEST(ExecutionHistoryMemoryTest, AllTenantsOfAUidShareWhatItMayHave) {
  const auto uid = std::make_shared<ProgramMemory>(ProgramMemory{.uid = 1001, .max = 4096});
  ExecutionHistory one(2, {}, kReformed);
  one.JoinShare(uid);
  uint32_t n = 0;
  while (one.Enter(Rank(0), Numbered(n), false, 0).ok()) ++n;
  EXPECT_EQ(uid->used, one.bytes());
  ExecutionHistory other(2, {}, kReformed);
  other.JoinShare(uid);
  const absl::Status refused = other.Enter(Rank(0), kA, false, 0).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("uid 1001 with all its groups holds"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the most is 4096"));
  EXPECT_EQ(one.Enter(Rank(1), Numbered(0), false, 0).status(), absl::OkStatus());
  one.LeaveShare();
  EXPECT_EQ(uid->used, 0u);
  EXPECT_EQ(other.Enter(Rank(0), kA, false, 0).status(), absl::OkStatus());
}

TEST(ExecutionHistoryMemoryTest, WhatHasFailedCountsAndGoesWithTheGenerationWhereItIsTooMuch) {
  const auto uid = std::make_shared<ProgramMemory>(ProgramMemory{.uid = 1001, .max = 65536});
  ExecutionHistory history(2, {}, kReformed);
  history.JoinShare(uid);
  uint64_t n = 0;
  while (history.Fail({kA, n}, absl::AbortedError(std::string(1000, 'x')), {false, true})) ++n;
  EXPECT_LT(n, 200u);
  history.EndGeneration(kLate);
  EXPECT_EQ(history.num_failed_remembered(), 0u);
  EXPECT_LT(history.bytes(), 1000u);
  history.Forget();
  EXPECT_EQ(history.bytes(), 0u);
  EXPECT_EQ(uid->used, 0u);
}

}  // namespace
}  // namespace epd
