// Goal: a call site in a GPU's stream says the same at every use, and the engine knows which use it
// is; its region is the tenant's eager buffer; what has failed stays failed through all steps of the use.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/daemon/worker/exchange_harness.h"

namespace epd {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

constexpr uint64_t kEagerBufferBytes = 4096;

class Streams : public ::testing::Test {
 protected:
  explicit Streams(bool drop = false, const std::string& backend = "auto")
      : h_({.staging_bytes = kPool,
            .device_staging_bytes = uint64_t{16} << 20,
            .stream_region_bytes = kEagerBufferBytes}) {
    GroupSpec spec = h_.Spec(2);
    spec.backend = backend;
    spec.executor = Executor::kWorker;
    spec.drop_on_overflow = drop;
    h_.StartTenant(spec);
  }
  // Site `s` has the slots 3s (announce), 3s + 1 and 3s + 2.
  Submission Take(uint32_t rank, uint32_t site, shm::Step step, uint64_t formation = 1) {
    shm::SlotRequest request = h_.Dispatch(rank);
    request.kind = kind_;
    request.has_weights = kind_ == shm::Kind::kDispatch;
    if (rank == 1) request.announce.demand = demand_of_rank_1_;
    SetStreamStep(request, site, step);
    if (rank == 1) request.plan_id = plan_id_of_rank_1_;
    request.formation = formation;
    request.stage_bytes = 2000;
    request.out_bytes = 500;
    return h_.Take({h_.SessionOf(rank), StreamSlot(site, step), ++claim_}, request);
  }
  std::vector<Submission> TakeBoth(uint32_t site, shm::Step step) {
    return {Take(0, site, step), Take(1, site, step)};
  }
  void Move(const absl::Status& status = absl::OkStatus()) {
    h_.RowsMoved(h_.moves.back().operation, status);
  }
  // A whole use of a site on both ranks; the answers of publish.
  std::vector<Submission> Run(uint32_t site, const absl::Status& status = absl::OkStatus()) {
    TakeBoth(site, shm::Step::kStreamAnnounce);
    const auto published = TakeBoth(site, shm::Step::kStreamPublish);
    Move(status);
    TakeBoth(site, shm::Step::kStreamPulled);
    return published;
  }

  ExchangeHarness h_;
  shm::Kind kind_ = shm::Kind::kDispatch;
  uint64_t demand_of_rank_1_ = 0;
  uint64_t plan_id_of_rank_1_ = 1;
  uint32_t claim_ = 1;
};

class OnDevice : public Streams {
 protected:
  OnDevice() : Streams(false, "cuda") {}
  void Drain(bool in_order) {
    h_.streams_busy = true;
    h_.exchange.DrainTenant(kGroup, Formation(1), h_.now, in_order);
    h_.Perform();
  }
};

class DroppingStreams : public Streams {
 protected:
  DroppingStreams() : Streams(true) {}
};

TEST_F(Streams, TheStreamRegionHoldsEveryOperation) {
  for (int n = 0; n < 3; ++n) {
    const auto submissions = TakeBoth(0, shm::Step::kStreamAnnounce);
    EXPECT_EQ(h_.answers.at(submissions[0]).region.offset, 0u);
    EXPECT_EQ(h_.answers.at(submissions[0]).region.out_offset, 2048u);
    TakeBoth(0, shm::Step::kStreamPublish);
    Move();
    TakeBoth(0, shm::Step::kStreamPulled);
  }
  EXPECT_TRUE(h_.commits.empty()) << "no use makes memory";
  EXPECT_TRUE(h_.records.empty());
}

TEST_F(Streams, EveryUseIsAnOperationOfItsOwnAndSitesCountForThemselves) {
  std::set<OperationId> operations;
  for (const uint32_t site : {0u, 1u, 0u, 0u, 1u}) {
    const auto submissions = Run(site);
    EXPECT_EQ(h_.code(submissions[0]), Code::kOk) << h_.text(submissions[0]);
    EXPECT_EQ(h_.operation(submissions[0]), h_.operation(submissions[1]));
    EXPECT_TRUE(operations.insert(h_.operation(submissions[0])).second);
  }
}

TEST_F(Streams, TheNextAnnounceWaitsUntilPulledWasClaimedAndAnswered) {
  TakeBoth(0, shm::Step::kStreamAnnounce);
  TakeBoth(0, shm::Step::kStreamPublish);
  Move();
  const auto next = TakeBoth(0, shm::Step::kStreamAnnounce);
  EXPECT_FALSE(h_.answered(next[0]));
  const Submission pulled = Take(0, 0, shm::Step::kStreamPulled);
  EXPECT_FALSE(h_.answered(pulled)) << "rank 1 still reads";
  EXPECT_FALSE(h_.answered(next[0])) << "before its pulled";
  Take(1, 0, shm::Step::kStreamPulled);
  EXPECT_TRUE(h_.answered(pulled));
  EXPECT_EQ(h_.code(next[0]), Code::kOk) << h_.text(next[0]);
}

TEST_F(Streams, OneOperationAtATimeHasTheStreamRegion) {
  TakeBoth(0, shm::Step::kStreamAnnounce);
  const auto second = TakeBoth(1, shm::Step::kStreamAnnounce);
  EXPECT_FALSE(h_.answered(second[0])) << "the stream region is taken";
  TakeBoth(0, shm::Step::kStreamPublish);
  Move();
  TakeBoth(0, shm::Step::kStreamPulled);
  EXPECT_EQ(h_.code(second[0]), Code::kOk) << h_.text(second[0]);
}

TEST_F(Streams, AFailedUseFailsInAllItsStepsAndTheNextOneIsFree) {
  const auto failed = Run(0, absl::DataLossError("damaged"));
  for (const Submission& submission : failed) {
    EXPECT_EQ(h_.code(submission), Code::kDataLoss);
    EXPECT_THAT(h_.text(submission), HasSubstr("damaged"));
  }
  EXPECT_EQ(h_.code(Run(0)[0]), Code::kOk);
  EXPECT_TRUE(h_.records.empty());
}

TEST_F(Streams, AnAnnounceThatFailsGivesItsCauseToThePublishBehindIt) {
  const Submission announced = Take(0, 0, shm::Step::kStreamAnnounce, /*formation=*/9);
  EXPECT_EQ(h_.code(announced), Code::kAborted);
  const Submission published = Take(0, 0, shm::Step::kStreamPublish, 9);
  EXPECT_EQ(h_.code(published), Code::kAborted);
  EXPECT_EQ(h_.text(published), h_.text(announced));
  EXPECT_EQ(h_.code(Take(0, 0, shm::Step::kStreamPulled, 9)), Code::kOk);
  EXPECT_EQ(h_.code(Run(0)[0]), Code::kOk) << "uses of another formation do not count";
}

TEST_F(Streams, StepsOfAnEarlierWorkersUseEndAtOnce) {
  EXPECT_EQ(h_.code(Take(0, 0, shm::Step::kStreamPublish)), Code::kAborted);
  EXPECT_EQ(h_.code(Take(0, 0, shm::Step::kStreamPulled)), Code::kOk);
  EXPECT_EQ(h_.code(Take(1, 0, shm::Step::kStreamPulled)), Code::kOk);
  EXPECT_EQ(h_.code(Run(0)[0]), Code::kOk);
}

TEST_F(Streams, RanksThatComeInAtDifferentCallsMeetAtOne) {
  // Rank 0 is at the program's last call, rank 1 at its second of three.
  const Submission ahead = Take(0, 2, shm::Step::kStreamAnnounce);
  EXPECT_FALSE(h_.answered(ahead)) << "rank 1 may come there";
  const Submission second = Take(1, 1, shm::Step::kStreamAnnounce);
  EXPECT_EQ(h_.code(ahead), Code::kAborted);
  EXPECT_THAT(h_.text(ahead), HasSubstr("different calls"));
  EXPECT_FALSE(h_.answered(second));
  for (const shm::Step step : {shm::Step::kStreamPublish, shm::Step::kStreamPulled})
    Take(0, 2, step);
  const Submission first = Take(0, 0, shm::Step::kStreamAnnounce);
  EXPECT_EQ(h_.code(second), Code::kAborted) << "an earlier call";
  EXPECT_FALSE(h_.answered(first));
  for (const shm::Step step : {shm::Step::kStreamPublish, shm::Step::kStreamPulled})
    Take(1, 1, step);
  const Submission third = Take(1, 2, shm::Step::kStreamAnnounce);
  EXPECT_EQ(h_.code(third), Code::kAborted);
  for (const shm::Step step : {shm::Step::kStreamPublish, shm::Step::kStreamPulled})
    Take(1, 2, step);
  const Submission met = Take(1, 0, shm::Step::kStreamAnnounce);
  EXPECT_EQ(h_.code(met), Code::kOk) << h_.text(met);
  EXPECT_EQ(h_.operation(first), h_.operation(met));
  TakeBoth(0, shm::Step::kStreamPublish);
  Move();
  TakeBoth(0, shm::Step::kStreamPulled);
  for (const uint32_t site : {1u, 2u, 0u}) EXPECT_EQ(h_.code(Run(site)[0]), Code::kOk);
}

TEST_F(Streams, AStreamsPrepareIsToldWhatItsPlanIsNamedAfter) {
  for (const uint32_t rank : {0u, 1u}) {
    shm::SlotRequest request = h_.Request(rank);
    request.step = shm::Step::kStreamAnnounce;
    request.announce.route_report =
        UINT64_MAX;  // The kernel that counted the routes found nothing wrong.
    h_.Take({h_.SessionOf(rank), 9, 77}, request);
  }
  const AnswerSubmission& answer = h_.answers.at({h_.SessionOf(0), 9, 77});
  ASSERT_TRUE(answer.plan_name.has_value());
  EXPECT_EQ(answer.plan_name->group_id, kGroup.value);
  EXPECT_EQ(answer.plan_name->epoch, 3u);
  EXPECT_EQ(answer.plan_name->plan_id, answer.plan_id);
}

// Routes differ from use to use, and so does what a rank needs.
TEST_F(Streams, AnOverflowFailsThatUseOnEveryRankAndNoOther) {
  for (const uint64_t demand : {64u, 65u, 64u, 70u, 0u, 65u, 66u, 64u}) {
    demand_of_rank_1_ = demand;
    const bool good = demand <= 64;
    const auto submissions = TakeBoth(0, shm::Step::kStreamAnnounce);
    const auto published = TakeBoth(0, shm::Step::kStreamPublish);
    if (good) Move();
    TakeBoth(0, shm::Step::kStreamPulled);
    for (const Submission& submission :
         {submissions[0], submissions[1], published[0], published[1]}) {
      EXPECT_EQ(h_.code(submission), good ? Code::kOk : Code::kResourceExhausted)
          << h_.text(submission);
      if (good) continue;
      EXPECT_THAT(h_.text(submission), HasSubstr("rank=1 host="));
      EXPECT_THAT(h_.text(submission), HasSubstr(std::to_string(demand) + " slots"));
      EXPECT_THAT(h_.text(submission), HasSubstr("its capacity is 64"));
    }
  }
}

TEST_F(DroppingStreams, AnOverflowIsNoError) {
  demand_of_rank_1_ = 65;
  EXPECT_EQ(h_.code(Run(0)[0]), Code::kOk);
}

// On a CPU the call itself finds that out.
TEST_F(Streams, ACombineOfFewerSlotsThanTheRowsFillFailsOnEveryRank) {
  kind_ = shm::Kind::kCombine;
  demand_of_rank_1_ = 65;
  for (const Submission& submission : TakeBoth(0, shm::Step::kStreamAnnounce)) {
    EXPECT_EQ(h_.code(submission), Code::kInvalidArgument);
    EXPECT_THAT(h_.text(submission), HasSubstr("rank=1 host="));
    EXPECT_THAT(h_.text(submission),
                HasSubstr("recv_capacity: got 64 slots, the plan's rows fill 65"));
  }
}

// Before the ranks have met: what one rank finds wrong waits for the others, and stays with that use.
class FirstToCome : public Streams, public ::testing::WithParamInterface<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, FirstToCome, ::testing::Values(0u, 1u));

TEST_P(FirstToCome, AFirstUseThatFailsIsNotRememberedForTheNext) {
  plan_id_of_rank_1_ = 0;
  const Submission one = Take(GetParam(), 0, shm::Step::kStreamAnnounce);
  EXPECT_FALSE(h_.answered(one));
  const Submission other = Take(1 - GetParam(), 0, shm::Step::kStreamAnnounce);
  for (const Submission& submission : {one, other}) {
    EXPECT_EQ(h_.code(submission), Code::kInvalidArgument);
    EXPECT_THAT(h_.text(submission), HasSubstr("rank=1 host="));
    EXPECT_THAT(h_.text(submission), HasSubstr("plan_id"));
  }
  TakeBoth(0, shm::Step::kStreamPublish);
  TakeBoth(0, shm::Step::kStreamPulled);
  plan_id_of_rank_1_ = 1;
  for (int n = 0; n < 3; ++n) EXPECT_EQ(h_.code(Run(0)[0]), Code::kOk);
}

TEST_F(Streams, WhatDoesNotFitIntoTheStreamRegionSaysHowMuchThereIs) {
  for (const uint32_t rank : {0u, 1u}) {
    shm::SlotRequest request = h_.Dispatch(rank);
    request.step = shm::Step::kStreamAnnounce;
    request.stage_bytes = kEagerBufferBytes + 1;
    h_.Take({h_.SessionOf(rank), 0, 5}, request);
  }
  const Submission submission{h_.SessionOf(0), 0, 5};
  EXPECT_EQ(h_.code(submission), Code::kResourceExhausted);
  EXPECT_THAT(h_.text(submission), HasSubstr(std::to_string(kEagerBufferBytes)));
}

TEST_F(Streams, HostileStepsHarmNobodyElse) {
  shm::SlotRequest request = h_.Dispatch(0);
  request.step = shm::Step::kStreamPublish;
  // What is kept of sites is bounded by the session's own slots.
  h_.exchange.AddSession(h_.SessionOf(0), 0, 256);
  for (const uint32_t site : {256u, limits::kMaxOpSlots}) {
    request.stream.announce_slot = site;
    const Submission far{h_.SessionOf(0), 1, site};
    h_.Take(far, request);
    EXPECT_EQ(h_.code(far), Code::kInvalidArgument);
    EXPECT_THAT(h_.text(far), HasSubstr("less than 256"));
  }
  // The same slot three times, as if the client wrote over its word.
  Take(0, 0, shm::Step::kStreamAnnounce);
  const Submission held = Take(0, 0, shm::Step::kStreamAnnounce);
  Take(0, 0, shm::Step::kStreamAnnounce);
  EXPECT_EQ(h_.code(held), Code::kDataLoss);
}

TEST_F(Streams, ArenasGoWithTheTenantOnceNobodyCopies) {
  TakeBoth(0, shm::Step::kStreamAnnounce);
  h_.EndTenant(absl::UnavailableError("over"));
  EXPECT_FALSE(h_.arenas.empty()) << "two ranks copy";
  EXPECT_EQ(h_.code(TakeBoth(0, shm::Step::kStreamPublish)[0]), Code::kUnavailable);
  EXPECT_TRUE(h_.arenas.empty());
}

TEST_F(Streams, RanksThatDoNotAllCallFromAStreamAreTold) {
  const Submission streamed = Take(0, 0, shm::Step::kStreamAnnounce);
  shm::SlotRequest request = h_.Dispatch(1, 0);
  request.ordinal = 0;
  request.program[12] = 1;  // As the engine names a site's program.
  h_.Take(request);
  EXPECT_FALSE(h_.answered(streamed) && h_.code(streamed) == Code::kOk);
}

TEST_F(OnDevice, ADrainInOrderLetsStreamsGoOnUntilTheyAreIdleAndRefusesThen) {
  TakeBoth(0, shm::Step::kStreamAnnounce);
  Drain(/*in_order=*/true);
  ASSERT_EQ(h_.awaited_streams.size(), 1u);
  EXPECT_THAT(h_.awaited_streams[0].sessions,
              ::testing::ElementsAre(h_.SessionOf(0), h_.SessionOf(1)));
  const auto published = TakeBoth(0, shm::Step::kStreamPublish);
  Move();
  TakeBoth(0, shm::Step::kStreamPulled);
  EXPECT_EQ(h_.code(published[0]), Code::kOk);
  EXPECT_EQ(h_.code(Run(1)[1]), Code::kOk) << "it was in the streams before";
  EXPECT_TRUE(h_.drained.empty()) << "more may be in them";

  h_.exchange.StreamsIdle(kGroup, Formation(1), h_.now);
  h_.Perform();
  EXPECT_EQ(h_.drained.size(), 1u);
  for (const Submission& refused : TakeBoth(0, shm::Step::kStreamAnnounce))
    EXPECT_EQ(h_.code(refused), Code::kFailedPrecondition);
}

TEST_F(OnDevice, WhatIsOpenWhenTheStreamsAreIdleEndsBeforeTheDrain) {
  Drain(/*in_order=*/true);
  TakeBoth(0, shm::Step::kStreamAnnounce);
  h_.exchange.StreamsIdle(kGroup, Formation(1), h_.now);
  h_.Perform();
  EXPECT_TRUE(h_.drained.empty());
  const auto published = TakeBoth(0, shm::Step::kStreamPublish);
  Move();
  TakeBoth(0, shm::Step::kStreamPulled);
  EXPECT_EQ(h_.code(published[0]), Code::kOk);
  EXPECT_EQ(h_.drained.size(), 1u);
}

TEST_F(OnDevice, AnOperatorsDrainRefusesAtOnce) {
  Drain(/*in_order=*/false);
  EXPECT_TRUE(h_.awaited_streams.empty());
  EXPECT_EQ(h_.drained.size(), 1u);
  EXPECT_EQ(h_.code(Take(0, 0, shm::Step::kStreamAnnounce)), Code::kFailedPrecondition);
}

}  // namespace
}  // namespace epd
