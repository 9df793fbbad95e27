// Goal: a failure reaches every rank of the tenant with one cause, now or at its next use, and ends
// exactly as much as it must: an operation's execution, a generation, or the formation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/daemon/worker/exchange_harness.h"

namespace epd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

class Failure : public ::testing::Test {
 protected:
  void SetUp() override { h_.StartTenant(h_.Spec(2)); }
  shm::SlotRequest Bad(uint32_t rank, uint64_t execution = 0) {
    shm::SlotRequest request = h_.Request(rank, execution);
    request.error_code = static_cast<uint32_t>(Code::kInvalidArgument);
    std::strcpy(request.error, "topk_idx[3, 1] is 9, expected less than 4");
    return request;
  }
  // Announces on both ranks and returns the admitted operation.
  OperationId Admitted(uint64_t execution = 0) {
    const auto submissions = h_.AnnounceAll({h_.Request(0, execution), h_.Request(1, execution)});
    EXPECT_EQ(h_.code(submissions[0]), Code::kOk) << h_.text(submissions[0]);
    return h_.operation(submissions[0]);
  }
  ExchangeHarness h_;
};

TEST_F(Failure, OwnInputErrorReachesTheRankThatWaits) {
  const Submission waits = h_.Take(h_.Request(0));
  const Submission bad = h_.Take(Bad(1));
  for (const Submission& submission : {waits, bad}) {
    EXPECT_EQ(h_.code(submission), Code::kInvalidArgument);
    EXPECT_THAT(h_.text(submission),
                AllOf(HasSubstr("rank=1 host=host1 pid=101"), HasSubstr("topk_idx[3, 1] is 9")));
  }
}

TEST_F(Failure, OwnInputErrorReachesTheRankThatComesLater) {
  h_.Take(Bad(1));
  const Submission late = h_.Take(h_.Request(0));
  EXPECT_EQ(h_.code(late), Code::kInvalidArgument);
  EXPECT_THAT(h_.text(late), HasSubstr("topk_idx[3, 1] is 9"));
  EXPECT_EQ(h_.exchange.num_open_operations(), 0u);
}

TEST_F(Failure, OwnInputErrorReachesTheRankThatComesAfterTheGuiltyOneHasLeft) {
  h_.Take(Bad(1));
  h_.EndTenant(absl::UnavailableError("rank=1 has left"));
  EXPECT_THAT(h_.text(h_.Take(h_.Request(0))), HasSubstr("topk_idx[3, 1] is 9"));
  EXPECT_THAT(h_.text(h_.Take(h_.Request(0, 1))), HasSubstr("rank=1 has left"));
}

TEST_F(Failure, ARankThatHasNotHeardOfTheNextFormationIsToldWhatHappenedInItsOwn) {
  h_.Take(Bad(1));
  TenantStart next = h_.Start(h_.Spec(2), kGroup, 2);
  ASSERT_TRUE(h_.exchange.StartTenant(next, h_.now).ok());
  h_.Perform();
  EXPECT_THAT(h_.text(h_.Take(h_.Request(0))), HasSubstr("topk_idx[3, 1] is 9"));
  const Submission later = h_.Take(h_.Request(0, 1));
  EXPECT_EQ(h_.code(later), Code::kAborted);
  EXPECT_THAT(h_.text(later), HasSubstr("the group was re-formed"));
}

TEST_F(Failure, OwnInputErrorEndsItsExecutionAndNothingElse) {
  shm::SlotRequest same_execution = h_.Request(0);
  same_execution.ordinal = 4;
  const Submission sibling = h_.Take(same_execution);
  const Submission next = h_.Take(h_.Request(0, 1));
  h_.Take(Bad(1));
  EXPECT_EQ(h_.code(sibling), Code::kInvalidArgument);
  EXPECT_FALSE(h_.answered(next));
  h_.Take(h_.Request(1, 1));
  EXPECT_EQ(h_.code(next), Code::kOk);
}

TEST_F(Failure, OwnErrorAtPublishFailsTheOthersToo) {
  const OperationId op = Admitted();
  const Submission waits = h_.Step(0, op, shm::Step::kPublish);
  shm::SlotRequest bad = Bad(1);
  bad.step = shm::Step::kPublish;
  bad.operation.op_id = op.value;
  const Submission guilty = h_.Take(bad);
  EXPECT_EQ(h_.code(waits), Code::kInvalidArgument);
  EXPECT_EQ(h_.code(guilty), Code::kInvalidArgument);
  EXPECT_THAT(h_.text(waits), HasSubstr("rank=1 host=host1 pid=101 phase=publish"));
  EXPECT_EQ(h_.exchange.num_open_operations(), 0u);
}

TEST_F(Failure, OverflowNamesRankDemandAndCapacity) {
  shm::SlotRequest over = h_.Dispatch(1);
  over.announce.demand = 65;
  const auto submissions = h_.AnnounceAll({h_.Dispatch(0), over});
  for (const Submission& submission : submissions) {
    EXPECT_EQ(h_.code(submission), Code::kResourceExhausted);
    EXPECT_THAT(
        h_.text(submission),
        HasSubstr(
            "rank=1 host=host1 pid=101 phase=announce would receive 65 slots, its capacity is 64"));
  }
  Admitted(1);  // Nothing else has ended.
}

TEST_F(Failure, OverflowIsNoErrorWhenTheGroupDrops) {
  ExchangeHarness h;
  GroupSpec spec = h.Spec(2);
  spec.drop_on_overflow = true;
  h.StartTenant(spec);
  shm::SlotRequest over = h.Dispatch(1);
  over.announce.demand = 65;
  EXPECT_EQ(h.code(h.AnnounceAll({h.Dispatch(0), over})[0]), Code::kOk);
}

TEST_F(Failure, DisagreementEndsTheGenerationOnAllPrograms) {
  shm::SlotRequest other_program = h_.Request(0);
  other_program.program[0] = 9;
  const Submission other = h_.Take(other_program);
  shm::SlotRequest odd = h_.Request(1, 3);
  odd.top_k = 1;
  h_.AnnounceAll({h_.Request(0, 3), odd});
  EXPECT_EQ(h_.code(other), Code::kInvalidArgument);
  // A rank that is behind fails at once, up to the highest that anybody has begun.
  EXPECT_EQ(h_.code(h_.Take(h_.Request(1, 2))), Code::kInvalidArgument);
  other_program.rank = 1;
  EXPECT_EQ(h_.code(h_.Take(other_program)), Code::kInvalidArgument);
  Admitted(4);
}

TEST_F(Failure, DeadSessionFailsAllThatWaitAndAllThatComes) {
  const Submission waits = h_.Take(h_.Request(0));
  h_.SessionDead(h_.SessionOf(1), absl::UnavailableError("its process was killed"));
  const Submission later = h_.Take(h_.Request(0, 1));
  for (const Submission& submission : {waits, later}) {
    EXPECT_EQ(h_.code(submission), Code::kUnavailable);
    EXPECT_THAT(h_.text(submission),
                AllOf(HasSubstr("rank=1 host=host1 pid=101"), HasSubstr("its process was killed")));
  }
}

TEST_F(Failure, DeadSessionLetsAGoodOperationFinish) {
  const OperationId op = Admitted();
  h_.Step(1, op, shm::Step::kPublish);
  const Submission publish = h_.Step(0, op, shm::Step::kPublish);
  h_.SessionDead(h_.SessionOf(1), absl::UnavailableError("killed"));
  EXPECT_EQ(h_.code(publish), Code::kOk);
  const Submission pulled = h_.Step(0, op, shm::Step::kPulled);
  EXPECT_EQ(h_.code(pulled), Code::kOk);
  EXPECT_EQ(h_.exchange.staging().pool().in_use_bytes(), 0u);
}

TEST_F(Failure, RankBetweenUsesHoldsTheRegionAndIsToldAtItsNextUse) {
  const OperationId op = Admitted();
  h_.SessionDead(h_.SessionOf(1), absl::UnavailableError("killed"));
  EXPECT_GT(h_.exchange.staging().pool().in_use_bytes(), 0u) << "rank 0 still writes";
  const Submission publish = h_.Step(0, op, shm::Step::kPublish);
  EXPECT_EQ(h_.code(publish), Code::kUnavailable);
  EXPECT_EQ(h_.exchange.staging().pool().in_use_bytes(), 0u);
  EXPECT_TRUE(h_.records.empty());
}

TEST_F(Failure, EndOfTheTenantAnswersAllAndDropsTheArenasWithTheLastHolder) {
  const OperationId op = Admitted();
  const Submission waits = h_.Take(h_.Request(0, 1));
  h_.EndTenant(absl::AbortedError("a new rank 1"));
  EXPECT_EQ(h_.code(waits), Code::kAborted);
  EXPECT_EQ(h_.code(h_.Take(h_.Request(0, 2))), Code::kAborted);
  EXPECT_EQ(h_.arenas.size(), 1u);
  for (uint32_t r = 0; r < 2; ++r) {
    EXPECT_EQ(h_.code(h_.Step(r, op, shm::Step::kPublish)), Code::kAborted);
  }
  EXPECT_TRUE(h_.arenas.empty());
}

TEST_F(Failure, SessionsThatDieAfterTheirTenantHasEndedLetGoOfWhatTheyHold) {
  Admitted();
  h_.EndTenant(absl::AbortedError("a new rank 1"));
  h_.SessionDead(h_.SessionOf(0), absl::UnavailableError("killed"));
  EXPECT_EQ(h_.exchange.num_open_operations(), 1u) << "rank 1 still writes";
  h_.SessionDead(h_.SessionOf(1), absl::UnavailableError("killed"));
  EXPECT_EQ(h_.exchange.num_open_operations(), 0u);
  EXPECT_TRUE(h_.arenas.empty());
}

TEST_F(Failure, BasesOfANewFormationFailOldExecutionsAndShiftTheOthers) {
  TenantStart start = h_.Start(h_.Spec(2), kGroup, 2);
  ProgramId program{};
  program[0] = 1;
  start.bases = {{.rank = Rank(0), .program = program, .base = 5}};
  ASSERT_TRUE(h_.exchange.StartTenant(start, h_.now).ok());
  h_.Perform();
  const auto in_formation = [&](uint32_t rank, uint64_t raw) {
    shm::SlotRequest request = h_.Request(rank, raw);
    request.formation = 2;
    return h_.Take(request);
  };
  const Submission old = in_formation(0, 4);
  EXPECT_EQ(h_.code(old), Code::kAborted);
  EXPECT_THAT(h_.text(old), HasSubstr("before the re-formation"));
  const Submission stayed = in_formation(0, 5);
  const Submission fresh = in_formation(1, 0);
  EXPECT_EQ(h_.code(stayed), Code::kOk);
  EXPECT_EQ(h_.operation(stayed), h_.operation(fresh));
}

TEST_F(Failure, StaleFormationIsAbortedWithBothValues) {
  shm::SlotRequest stale = h_.Request(0);
  stale.epoch = 2;
  const Submission submission = h_.Take(stale);
  EXPECT_EQ(h_.code(submission), Code::kAborted);
  EXPECT_THAT(h_.text(submission),
              AllOf(HasSubstr("epoch 2 formation 1"), HasSubstr("epoch 3 formation 1")));
}

TEST_F(Failure, DrainRefusesNewOperationsAndLetsOldOnesFinish) {
  const OperationId old = Admitted();
  const Submission half = h_.Take(h_.Request(0, 1));
  h_.exchange.DrainTenant(kGroup, Formation(1), h_.now);
  h_.Perform();
  const Submission late = h_.Take(h_.Request(0, 2));
  EXPECT_EQ(h_.code(late), Code::kFailedPrecondition);
  EXPECT_THAT(h_.text(late), HasSubstr("[EPD-1401]"));
  const Submission other_half = h_.Take(h_.Request(1, 1));
  EXPECT_EQ(h_.code(half), Code::kOk);
  EXPECT_TRUE(h_.drained.empty());
  for (const OperationId op : {old, h_.operation(other_half)}) h_.Finish(op);
  EXPECT_THAT(h_.drained, ElementsAre(Formation(1)));
}

TEST_F(Failure, DrainOfAnIdleTenantIsReportedAtOnce) {
  h_.exchange.DrainTenant(kGroup, Formation(1), h_.now);
  h_.Perform();
  EXPECT_THAT(h_.drained, ElementsAre(Formation(1)));
}

TEST_F(Failure, NoMemoryForPagesIsAnErrorAndTheRegionComesBack) {
  h_.commit_status = absl::ResourceExhaustedError("the node has no memory");
  const auto submissions = h_.AnnounceAll({h_.Request(0), h_.Request(1)});
  for (const Submission& submission : submissions)
    EXPECT_EQ(h_.code(submission), Code::kResourceExhausted);
  EXPECT_EQ(h_.exchange.staging().pool().in_use_bytes(), 0u);
  h_.commit_status = absl::OkStatus();
  Admitted(1);
}

TEST_F(Failure, WorkerExecutorMovesAfterTheLastPublishAndBeforeTheOutcome) {
  ExchangeHarness h;
  GroupSpec spec = h.Spec(2);
  spec.executor = Executor::kWorker;
  h.StartTenant(spec);
  shm::SlotRequest requests[2] = {h.Request(0), h.Request(1)};
  for (auto& request : requests) request.out_bytes = 100;
  const auto submissions = h.AnnounceAll({requests[0], requests[1]});
  const OperationId op = h.operation(submissions[0]);
  EXPECT_EQ(h.answers.at(submissions[0]).region.out_offset, 64u);
  const Submission first = h.Step(0, op, shm::Step::kPublish);
  EXPECT_TRUE(h.moves.empty());
  const Submission second = h.Step(1, op, shm::Step::kPublish);
  ASSERT_EQ(h.moves.size(), 1u);
  EXPECT_FALSE(h.answered(first));
  h.RowsMoved(op, absl::DataLossError("a stage is corrupt"));
  EXPECT_EQ(h.code(first), Code::kDataLoss);
  EXPECT_EQ(h.code(second), Code::kDataLoss);
}

TEST_F(Failure, AMoveWhoseOperationHasFailedIsCancelledAndHoldsItsRegionUntilItEnds) {
  ExchangeHarness h;
  GroupSpec spec = h.Spec(2);
  spec.executor = Executor::kWorker;
  h.StartTenant(spec);
  shm::SlotRequest requests[2] = {h.Request(0), h.Request(1)};
  for (auto& request : requests) request.out_bytes = 100;
  const OperationId op = h.operation(h.AnnounceAll({requests[0], requests[1]})[0]);
  const Submission published = h.Step(0, op, shm::Step::kPublish);
  h.Step(1, op, shm::Step::kPublish);
  ASSERT_EQ(h.moves.size(), 1u);
  EXPECT_FALSE(h.moves[0].cancelled);
  h.SessionDead(h.SessionOf(1), absl::UnavailableError("killed"));
  EXPECT_EQ(h.code(published), Code::kUnavailable);
  ASSERT_EQ(h.moves.size(), 1u);
  EXPECT_TRUE(h.moves[0].cancelled);
  EXPECT_GT(h.exchange.staging().pool().in_use_bytes(), 0u);
  h.RowsMoved(op, absl::AbortedError("cancelled"));
  EXPECT_EQ(h.exchange.staging().pool().in_use_bytes(), 0u);
}

TEST_F(Failure, AMoveIsOfItsTenantsUser) {
  ExchangeHarness h;
  GroupSpec spec = h.Spec(1);
  spec.executor = Executor::kWorker;
  TenantStart start = h.Start(spec);
  h.exchange.AddSession(h.SessionOf(0), 1009);
  ASSERT_TRUE(h.exchange.StartTenant(std::move(start), h.now).ok());
  h.Perform();
  shm::SlotRequest request = h.Request(0);
  request.out_bytes = 100;
  h.Step(0, h.operation(h.Take(request)), shm::Step::kPublish);
  ASSERT_EQ(h.moves.size(), 1u);
  EXPECT_EQ(h.moves[0].uid, 1009u);
}

TEST_F(Failure, RanksOnANodeThatTakesNoStreamsAreRefused) {
  ExchangeHarness h;
  TenantStart start = h.Start(h.Spec(2));
  start.members[1].session = SessionId(0);
  ASSERT_TRUE(h.exchange.StartTenant(start, h.now).ok());
  h.Perform();
  EXPECT_EQ(h.ready.size(), 1u);
  EXPECT_EQ(h.code(h.Take(h.Request(0))), Code::kFailedPrecondition);
}

}  // namespace
}  // namespace epd
