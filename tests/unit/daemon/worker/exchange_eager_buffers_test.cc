// Goal: rows that stand in eager buffers when their ranks announce need one wait and no region, with the
// same outcomes, causes and holds as all others; and eager buffers take little and go with their arenas.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/daemon/worker/exchange_harness.h"

namespace epd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

constexpr uint64_t kBuffer = 8192;
constexpr uint32_t kNumBuffers = 2;
// Of a call that needs two: four such calls, and the few.
constexpr uint32_t kMany = 4 * 2 + kNumBuffers;

// Two ranks; the first small operation has given their arenas eager buffers.
class EagerBuffers : public ::testing::Test {
 protected:
  explicit EagerBuffers(Executor executor = Executor::kClient)
      : h_({.staging_bytes = kPool,
            .eager = {.buffer_bytes = kBuffer,
                      .few_buffers = kNumBuffers,
                      .max_buffers = kMany,
                      .pool_share = 2}}) {
    GroupSpec spec = h_.Spec(2);
    spec.executor = executor;
    h_.StartTenant(spec);
  }
  void SetUp() override { first_ = RunInRegion(0); }

  // One whole operation through a region; returns the answer of rank 0's announce.
  AnswerSubmission RunInRegion(uint64_t execution) {
    const auto submissions = h_.AnnounceAll({h_.Request(0, execution), h_.Request(1, execution)});
    const OperationId operation = h_.operation(submissions[0]);
    h_.Finish(operation);
    h_.moves.clear();
    return h_.answers.at(submissions[0]);
  }
  shm::SlotRequest Staged(uint32_t rank, uint64_t eager_buffer, uint64_t execution = 1) const {
    shm::SlotRequest request = h_.Dispatch(rank, execution);
    SetEagerBuffer(request, eager_buffer);
    return request;
  }
  // Rows that need two buffers. `client`: what it says of itself.
  shm::SlotRequest Large(uint32_t rank, uint64_t execution,
                         uint64_t client = shm::kReadsManyEagerBuffers) const {
    shm::SlotRequest request = h_.Dispatch(rank, execution);
    request.stage_bytes = kBuffer + 1;
    request.announce.client = client;
    return request;
  }
  // One whole operation of larger rows through a region; the area that rank 0 is told of.
  EagerArea RunLarge(const shm::SlotRequest& a, const shm::SlotRequest& b) {
    const auto submissions = h_.AnnounceAll({a, b});
    h_.Finish(h_.operation(submissions[0]));
    h_.moves.clear();
    return h_.answers.at(submissions[0]).region.eager;
  }
  uint64_t in_use() const { return h_.exchange.staging().pool().in_use_bytes(); }

  ExchangeHarness h_;
  AnswerSubmission first_;
};

TEST_F(EagerBuffers, FirstReplyTellsThemAndTheyAreCommittedWithTheFirstRegion) {
  EXPECT_EQ(first_.region.eager, (EagerArea{.offset = 0, .num_eager_buffers = kNumBuffers}));
  EXPECT_EQ(first_.region.offset, kNumBuffers * kBuffer);
  ASSERT_EQ(h_.commits.size(), 1u);
  EXPECT_EQ(h_.commits[0].offset, 0u);
  EXPECT_GE(h_.commits[0].bytes, kNumBuffers * kBuffer + first_.region.bytes);
}

TEST_F(EagerBuffers, AllStagedIsGoodAtOnceAndTakesNoRegion) {
  const uint64_t before = in_use();
  const auto submissions = h_.AnnounceAll({Staged(0, 1), Staged(1, 0)});
  for (const Submission& submission : submissions) {
    EXPECT_EQ(h_.code(submission), Code::kOk) << h_.text(submission);
    EXPECT_THAT(h_.eager[submission], ElementsAre(1, 0));
  }
  const OperationId operation = h_.operation(submissions[0]);
  EXPECT_TRUE(h_.decided.at(operation).ok());
  EXPECT_EQ(in_use(), before);

  const Submission pulled = h_.Step(0, operation, shm::Step::kPulled);
  EXPECT_FALSE(h_.answered(pulled)) << "rank 1 still reads rank 0's eager buffer";
  EXPECT_TRUE(h_.answered(h_.Step(1, operation, shm::Step::kPulled)));
  EXPECT_EQ(h_.code(pulled), Code::kOk);
  EXPECT_TRUE(h_.records.empty());
}

TEST_F(EagerBuffers, OneThatIsNotStagedTakesEverybodyThroughARegion) {
  const auto submissions = h_.AnnounceAll({Staged(0, 0), h_.Dispatch(1, 1)});
  const OperationId operation = h_.operation(submissions[0]);
  EXPECT_TRUE(h_.eager.empty());
  EXPECT_FALSE(h_.decided.contains(operation));
  const Submission publish = h_.Step(0, operation, shm::Step::kPublish);
  EXPECT_FALSE(h_.answered(publish));
  h_.Step(1, operation, shm::Step::kPublish);
  EXPECT_EQ(h_.code(publish), Code::kOk);
}

TEST_F(EagerBuffers, CountsOfAPrepareAreReadWhereTheyStand) {
  shm::SlotRequest requests[] = {h_.Request(0, 1), h_.Request(1, 1)};
  for (shm::SlotRequest& request : requests) {
    SetEagerBuffer(request, 1 - request.rank);
  }
  h_.AnnounceAll({requests[0], requests[1]});
  EXPECT_EQ(h_.num_count_routes, 2);
  EXPECT_THAT(h_.count_offsets, ElementsAre(kBuffer, 0));
}

TEST_F(EagerBuffers, DisagreementAndOverflowFailAsTheyDoWithoutEagerBuffers) {
  shm::SlotRequest other = Staged(1, 0);
  other.has_weights = 0;
  const auto submissions = h_.AnnounceAll({Staged(0, 0), other});
  EXPECT_EQ(h_.code(submissions[0]), Code::kInvalidArgument);
  EXPECT_EQ(h_.code(submissions[1]), Code::kInvalidArgument);
  shm::SlotRequest full = Staged(1, 0, 0);
  full.announce.demand = 65;
  full.program[0] = 9;
  shm::SlotRequest peer = Staged(0, 0, 0);
  peer.program[0] = 9;
  for (const Submission& submission : h_.AnnounceAll({peer, full})) {
    EXPECT_EQ(h_.code(submission), Code::kResourceExhausted) << h_.text(submission);
  }
  EXPECT_TRUE(h_.eager.empty());
  EXPECT_TRUE(h_.records.empty());
}

TEST_F(EagerBuffers, DeathBeforeAllAnnouncedFailsThemAndAfterwardsLeavesTheOutcome) {
  const auto good = h_.AnnounceAll({Staged(0, 0), Staged(1, 0)});
  const Submission waiting = h_.Take(Staged(0, 1, 2));
  h_.SessionDead(h_.SessionOf(1), absl::UnavailableError("killed"));
  EXPECT_EQ(h_.code(waiting), Code::kUnavailable);
  EXPECT_TRUE(h_.decided.at(h_.operation(good[0])).ok());
  EXPECT_EQ(h_.code(h_.Step(0, h_.operation(good[0]), shm::Step::kPulled)), Code::kOk);
}

TEST_F(EagerBuffers, BufferThatDoesNotExistOrIsTooSmallFailsItsOperation) {
  const auto expect = [&](const shm::SlotRequest& bad, const std::string& text) {
    const Submission submission = h_.Take(bad);
    EXPECT_EQ(h_.code(submission), Code::kInvalidArgument);
    EXPECT_THAT(h_.text(submission), HasSubstr(text));
  };
  expect(Staged(0, kNumBuffers, 1), "eager buffer is 2, expected less than num_eager_buffers=2");
  expect(Staged(0, UINT64_MAX, 2), "expected less than num_eager_buffers=2");
  shm::SlotRequest large = Staged(0, 0, 3);
  large.stage_bytes = kBuffer + 1;
  expect(large, "stage_bytes is 8193, expected at most the 8192 of 1 eager buffer");
  EXPECT_EQ(h_.code(h_.Take(Staged(1, 0, 3))), Code::kInvalidArgument) << "the peer's cause";
}

TEST_F(EagerBuffers, LargerRowsGetMoreOfThemWhereAllClientsReadSeveral) {
  const EagerArea few = {.offset = 0, .num_eager_buffers = kNumBuffers};
  EXPECT_EQ(RunLarge(Large(0, 1), Large(1, 1, 0)), few) << "rank 1 is of an earlier release";
  const auto submissions = h_.AnnounceAll({Large(0, 2), Large(1, 2)});
  const auto told = h_.answers.at(submissions[0]).region;
  EXPECT_EQ(told.eager, (EagerArea{.offset = 0, .num_eager_buffers = kMany}));
  EXPECT_GE(told.offset, kMany * kBuffer) << "the region stands behind them";
  h_.Finish(h_.operation(submissions[0]));
  EXPECT_EQ(in_use(), 2 * kMany * kBuffer);
  EXPECT_EQ(h_.exchange.staging().eager_bytes(), in_use());

  shm::SlotRequest staged[] = {Large(0, 3), Large(1, 3)};
  SetEagerBuffer(staged[0], kMany - 2);
  SetEagerBuffer(staged[1], 0);
  const auto good = h_.AnnounceAll({staged[0], staged[1]});
  EXPECT_EQ(h_.code(good[0]), Code::kOk) << h_.text(good[0]);
  EXPECT_THAT(h_.eager[good[1]], ElementsAre(kMany - 2, 0));
  h_.Step(0, h_.operation(good[0]), shm::Step::kPulled);
  h_.Step(1, h_.operation(good[0]), shm::Step::kPulled);

  SetEagerBuffer(staged[0], kMany - 1);
  staged[0].execution = 4;
  const Submission outside = h_.Take(staged[0]);
  EXPECT_THAT(h_.text(outside), HasSubstr("expected at most the 8192 of 1 eager buffer"));
  h_.EndTenant(absl::AbortedError("over"));
  EXPECT_EQ(in_use(), 0u);
}

TEST_F(EagerBuffers, TheyGrowNeitherOverRegionsNorPastOperationsThatWait) {
  const auto open = h_.AnnounceAll({h_.Dispatch(0, 1), h_.Dispatch(1, 1)});
  const auto beside = h_.AnnounceAll({Large(0, 2), Large(1, 2)});
  EXPECT_EQ(h_.answers.at(beside[0]).region.eager.num_eager_buffers, kNumBuffers);
  for (const auto& submissions : {open, beside}) h_.Finish(h_.operation(submissions[0]));
  EXPECT_EQ(RunLarge(Large(0, 3), Large(1, 3)).num_eager_buffers, kMany);
  EXPECT_EQ(RunInRegion(4).region.eager.num_eager_buffers, kMany) << "they are not given back";
}

TEST_F(EagerBuffers, TheyGoWithTheirArenas) {
  EXPECT_EQ(in_use(), 2 * kNumBuffers * kBuffer);
  h_.EndTenant(absl::AbortedError("over"));
  EXPECT_EQ(in_use(), 0u);
  EXPECT_EQ(h_.exchange.staging().eager_bytes(), 0u);
  EXPECT_TRUE(h_.arenas.empty());
}

TEST_F(EagerBuffers, WhatFitsBesideThemIsTakenAndWhatDoesNotIsRefusedAtOnce) {
  const uint64_t room = kPool / 2 - kNumBuffers * kBuffer;
  for (const uint64_t bytes : {room, room + 1}) {
    shm::SlotRequest requests[] = {h_.Dispatch(0, bytes), h_.Dispatch(1, bytes)};
    for (shm::SlotRequest& request : requests) {
      request.program[0] = static_cast<uint8_t>(bytes);
      request.execution = 0;
      request.stage_bytes = bytes;
    }
    const auto submissions = h_.AnnounceAll({requests[0], requests[1]});
    EXPECT_EQ(h_.code(submissions[0]), bytes == room ? Code::kOk : Code::kResourceExhausted);
    if (bytes == room) h_.Finish(h_.operation(submissions[0]));
  }
}

class EagerBuffersOfTheWorkerExecutor : public EagerBuffers {
 protected:
  EagerBuffersOfTheWorkerExecutor() : EagerBuffers(Executor::kWorker) {}
  void SetUp() override {}
};

TEST_F(EagerBuffersOfTheWorkerExecutor, AreNone) {
  EXPECT_EQ(RunInRegion(0).region.eager.num_eager_buffers, 0u);
  const Submission submission = h_.Take(Staged(0, 0));
  EXPECT_THAT(h_.text(submission),
              HasSubstr("eager buffer is 0, expected less than num_eager_buffers=0"));
}

TEST(EagerBuffersOfASmallPool, AreNone) {
  ExchangeHarness h;
  h.StartTenant(h.Spec(2));
  const auto submissions = h.AnnounceAll({h.Request(0), h.Request(1)});
  EXPECT_EQ(h.answers.at(submissions[0]).region.eager.num_eager_buffers, 0u);
  EXPECT_EQ(h.answers.at(submissions[0]).region.offset, 0u);
}

}  // namespace
}  // namespace epd
