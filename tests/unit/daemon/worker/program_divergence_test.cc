// Goal: ranks that wait for each other in different programs are told so soon, all of them, with
// what differs; as long as one of them may still come, they wait.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/daemon/worker/exchange_harness.h"

namespace epd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Code = absl::StatusCode;

constexpr absl::Duration kTick = absl::Nanoseconds(1);
constexpr absl::Duration kWarnAfter = absl::Seconds(20);

class Divergence : public ::testing::Test {
 protected:
  void SetUp() override { h_.StartTenant(h_.Spec(3)); }
  // Of program `program`, one of {1, 2, 3}.
  shm::SlotRequest In(uint8_t program, uint32_t rank, uint64_t execution = 0) {
    shm::SlotRequest request = h_.Request(rank, execution);
    request.program[0] = program;
    return request;
  }
  ExchangeHarness h_;
};

TEST_F(Divergence, RanksInDifferentProgramsAllFailWithWhatDiffers) {
  shm::SlotRequest odd = In(2, 1);
  odd.top_k = 1;
  const auto submissions = h_.AnnounceAll({In(1, 0), odd, In(1, 2)});
  h_.Advance(kWarnAfter - kTick);
  for (const Submission& submission : submissions) EXPECT_FALSE(h_.answered(submission));
  h_.Advance(kTick);
  for (const Submission& submission : submissions) {
    EXPECT_EQ(h_.code(submission), Code::kInvalidArgument);
    EXPECT_THAT(
        h_.text(submission),
        AllOf(HasSubstr("program=010000000000 execution=0 ordinal=0 occurrence=0 on ranks "
                        "0, 2"),
              HasSubstr("program=020000000000 execution=0 ordinal=0 occurrence=0 on ranks "
                        "1"),
              HasSubstr("top_k: 2 on ranks 0, 2, 1 on ranks 1"),
              HasSubstr("rank=1 host=host1 pid=101 phase=announce"), HasSubstr("[EPD-1003]")));
  }
}

TEST_F(Divergence, AllMeetInTheirNextExecutionThoughTheyBeganDifferentNumbersOfThem) {
  h_.AnnounceAll({In(1, 0), In(2, 1), In(1, 2)});
  h_.Advance(kWarnAfter);
  h_.AnnounceAll({In(1, 0, 1), In(1, 2, 1)});
  EXPECT_EQ(h_.code(h_.Take(In(1, 1))), Code::kOk) << "the first of this program for rank 1";
  h_.AnnounceAll({In(2, 0), In(2, 2)});
  EXPECT_EQ(h_.code(h_.Take(In(2, 1))), Code::kInvalidArgument) << "this one it was told of";
  EXPECT_EQ(h_.code(h_.Take(In(2, 1, 1))), Code::kOk);
}

TEST_F(Divergence, ProgramsThatDifferElsewhereAreNamed) {
  const auto submissions = h_.AnnounceAll({In(1, 0, 5), In(2, 1), In(3, 2)});
  h_.Advance(kWarnAfter);
  EXPECT_EQ(h_.code(submissions[0]), Code::kInvalidArgument);
  EXPECT_THAT(h_.text(submissions[0]), AllOf(HasSubstr("execution=5"), HasSubstr("program=03"),
                                             HasSubstr("these calls agree")));
}

TEST_F(Divergence, RanksInDifferentExecutionsOfOneProgramAreNamed) {
  shm::SlotRequest gradient = In(1, 1, 4);
  gradient.ordinal = 1;
  const auto submissions = h_.AnnounceAll({In(1, 0, 5), gradient, In(1, 2, 5)});
  h_.Advance(kWarnAfter - kTick);
  EXPECT_FALSE(h_.answered(submissions[0]));
  h_.Advance(kTick);
  for (const Submission& submission : submissions) {
    EXPECT_EQ(h_.code(submission), Code::kInvalidArgument);
    EXPECT_THAT(h_.text(submission),
                AllOf(HasSubstr("execution=4 ordinal=1 occurrence=0 on ranks 1"),
                      HasSubstr("execution=5 ordinal=0 occurrence=0 on ranks 0, 2")));
  }
  h_.AnnounceAll({In(1, 0, 6), In(1, 2, 6)});
  EXPECT_EQ(h_.code(h_.Take(In(1, 1, 5))), Code::kOk) << "they meet in their next ones";
}

TEST_F(Divergence, RanksWithoutTokensAreNamedIfOthersHaveSome) {
  shm::SlotRequest empty = In(2, 1);
  empty.num_tokens = 0;
  const auto submissions = h_.AnnounceAll({In(1, 0), empty, In(1, 2)});
  h_.Advance(kWarnAfter);
  EXPECT_THAT(h_.text(submissions[0]), HasSubstr("; ranks 1 have no tokens, "));
  const auto alike = h_.AnnounceAll({In(1, 0, 1), In(2, 1, 1), In(1, 2, 1)});
  h_.Advance(kWarnAfter);
  EXPECT_EQ(h_.code(alike[0]), Code::kInvalidArgument);
  EXPECT_THAT(h_.text(alike[0]), Not(HasSubstr("no tokens")));
}

TEST_F(Divergence, TheLastToComeSettlesIt) {
  h_.AnnounceAll({In(1, 0), In(2, 1)});
  h_.Advance(absl::Seconds(50));
  const Submission last = h_.Take(In(1, 2));
  h_.Advance(kWarnAfter);
  EXPECT_EQ(h_.code(last), Code::kInvalidArgument);
}

TEST_F(Divergence, ARankThatMayStillComeIsWaitedFor) {
  const auto submissions = h_.AnnounceAll({In(1, 0), In(2, 1)});
  h_.Advance(kWarnAfter);
  h_.Advance(absl::Minutes(5));
  for (const Submission& submission : submissions) EXPECT_FALSE(h_.answered(submission));
  EXPECT_EQ(h_.logs.size(), 2u) << "each is named once";
}

TEST_F(Divergence, ARankWithCallsInSeveralExecutionsMayGoOn) {
  const auto submissions = h_.AnnounceAll({In(1, 0), In(2, 1), In(2, 2), In(1, 1)});
  h_.Advance(kWarnAfter);
  EXPECT_FALSE(h_.answered(submissions[0]));
  EXPECT_EQ(h_.code(h_.Take(In(1, 2))), Code::kOk);
}

TEST_F(Divergence, NamedCallsPromiseNoOrder) {
  shm::SlotRequest named = h_.Request(1);
  h_.SetName(named, "eval");
  const auto submissions = h_.AnnounceAll({In(1, 0), named, In(1, 2)});
  h_.Advance(kWarnAfter);
  EXPECT_FALSE(h_.answered(submissions[0]));
}

TEST_F(Divergence, OneProgramsCallsInAnotherOrderAreNoFinding) {
  shm::SlotRequest later = In(1, 1);
  later.ordinal = 6;
  const auto submissions = h_.AnnounceAll({In(1, 0), later, In(1, 2)});
  h_.Advance(kWarnAfter);
  EXPECT_FALSE(h_.answered(submissions[0]));
}

TEST_F(Divergence, AShortWarningIsObeyedAndDoesNotSpin) {
  GroupSpec spec = h_.Spec(3);
  spec.deadlines.warn_after = absl::Milliseconds(1);
  h_.StartTenant(spec, GroupId(8));
  shm::SlotRequest requests[] = {In(1, 0), In(2, 1)};
  for (auto& request : requests) {
    request.group_id = 8;
    h_.Take(request);
  }
  h_.Advance(absl::Milliseconds(1));
  EXPECT_EQ(h_.exchange.next_deadline(), h_.now + absl::Seconds(1));
}

}  // namespace
}  // namespace epd
