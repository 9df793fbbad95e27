// Goal: where ranks on a device read each other's stages, the worker moves nothing, one rank's bad news is
// everybody's, and no stage serves another operation while a rank may still read or write
// it, whatever has become of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/kernel_error.h"
#include "kernels/region/region_layout.h"
#include "proto/epd/v1/limits.h"
#include "proto/epd/v1/route_counts.h"
#include "tests/unit/daemon/worker/exchange_harness.h"

namespace epd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Code = absl::StatusCode;
using shm::Step;

constexpr uint64_t kDevice = uint64_t{32} << 20;
constexpr uint64_t kGood = UINT64_MAX;
constexpr size_t kEpochAt = 32;  // In PlanHeader.

class RankMoves : public ::testing::Test {
 protected:
  RankMoves() { h_.StartTenant(OnDevice()); }

  static GroupSpec OnDevice() {
    GroupSpec spec = ExchangeHarness::Spec(2);
    spec.backend = "cuda";
    return spec;
  }
  // Of a scatter, as large as the group's sizes ask for.
  static uint64_t StageBytes(uint64_t row_bytes) {
    const GroupSpec spec = OnDevice();
    return MakeLayout(shm::Kind::kDispatch,
                      {.num_experts = spec.num_experts,
                       .num_tokens = spec.max_tokens_per_rank,
                       .num_slots = spec.recv_capacity_per_rank,
                       .top_k = spec.top_k == 0 ? uint64_t{limits::kTopK} : spec.top_k,
                       .row_bytes = row_bytes},
                      RegionStorage::kDeviceRanks)
        .stage_bytes;
  }
  // Site `s` has the slots 3s (announce), 3s + 1 and 3s + 2.
  shm::SlotRequest Request(uint32_t rank, uint32_t site, Step step) const {
    shm::SlotRequest request = h_.Dispatch(rank);
    request.announce.demand = 0;
    SetStreamStep(request, site, step);
    if (step != Step::kStreamAnnounce) SetGoodReport(request);
    request.stage_bytes = StageBytes(request.row_bytes);
    return request;
  }
  Submission Take(const shm::SlotRequest& request, uint32_t site) {
    return h_.Take({h_.SessionOf(request.rank), StreamSlot(site, request.step), ++claim_}, request);
  }
  Submission Take(uint32_t rank, uint32_t site, Step step) {
    return Take(Request(rank, site, step), site);
  }
  std::vector<Submission> TakeBoth(uint32_t site, Step step) {
    return {Take(0, site, step), Take(1, site, step)};
  }
  // Rank 1's kernels have found `fault` in its plan.
  Submission PublishFault(KernelFault fault, uint64_t plan_epoch = 0) {
    shm::SlotRequest request = Request(1, 0, Step::kStreamPublish);
    request.stream.move_report = static_cast<uint64_t>(static_cast<int32_t>(fault));
    std::memcpy(request.stream.plan_header + kEpochAt, &plan_epoch, sizeof plan_epoch);
    return Take(request, 0);
  }

  ExchangeHarness h_{{.staging_bytes = kPool, .device_staging_bytes = kDevice}};
  uint32_t claim_ = 1;
};

TEST_F(RankMoves, APublishIsAnsweredWhenEveryRankHasPublishedAndTheWorkerMovesNothing) {
  const auto announced = TakeBoth(0, Step::kStreamAnnounce);
  ASSERT_TRUE(h_.answers.at(announced[1]).plan_name.has_value());
  EXPECT_EQ(h_.answers.at(announced[1]).plan_name->plan_id, 1u) << "what the plan must be of";
  EXPECT_EQ(h_.answers.at(announced[1]).plan_name->epoch, 3u);
  const Submission first = Take(0, 0, Step::kStreamPublish);
  EXPECT_FALSE(h_.answered(first));
  const Submission second = Take(1, 0, Step::kStreamPublish);
  EXPECT_EQ(h_.code(first), Code::kOk) << h_.text(first);
  EXPECT_EQ(h_.code(second), Code::kOk);
  EXPECT_THAT(h_.moves, IsEmpty());
  TakeBoth(0, Step::kStreamPulled);
  EXPECT_THAT(h_.records, IsEmpty());
}

TEST_F(RankMoves, TheCountsOfAPrepareGoFromRankToRankAndTheWorkerIsToldThem) {
  Submission last;
  for (const Step step : {Step::kStreamAnnounce, Step::kStreamPublish}) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      shm::SlotRequest request = Request(rank, 0, step);
      request.kind = shm::Kind::kPrepare;
      request.stage_bytes = 16;
      if (step == Step::kStreamAnnounce) request.announce.route_report = kGood;
      const std::vector<uint16_t> counts = {static_cast<uint16_t>(10 + rank), 20, 65535, 0};
      if (step == Step::kStreamPublish)
        std::memcpy(reinterpret_cast<char*>(&request) + shm::kRouteCountsAt, counts.data(), 8);
      last = Take(request, 0);
    }
  }
  EXPECT_EQ(h_.code(last), Code::kOk) << h_.text(last);
  EXPECT_THAT(h_.moves, IsEmpty());
  EXPECT_THAT(h_.told_counts,
              ElementsAre(ElementsAre(10, 20, 65535, 0), ElementsAre(11, 20, 65535, 0)));
}

TEST_F(RankMoves, WhatARanksKernelsFoundFailsEveryRank) {
  TakeBoth(0, Step::kStreamAnnounce);
  const Submission first = Take(0, 0, Step::kStreamPublish);
  const Submission second = PublishFault(KernelFault::kPlanEpoch, 2);
  for (const Submission& submission : {first, second}) {
    EXPECT_EQ(h_.code(submission), Code::kAborted);
    EXPECT_THAT(h_.text(submission),
                AllOf(HasSubstr("rank=1"), HasSubstr("epoch of the routing plan"),
                      HasSubstr("got 2, expected 3")));
  }
}

TEST_F(RankMoves, AnyReportIsNamed) {
  for (const uint64_t report : {uint64_t{0}, uint64_t{0xff}, uint64_t{12345678}}) {
    TakeBoth(0, Step::kStreamAnnounce);
    const Submission first = Take(0, 0, Step::kStreamPublish);
    shm::SlotRequest hostile = Request(1, 0, Step::kStreamPublish);
    hostile.stream.move_report = report;
    std::memset(hostile.stream.plan_header, 0xfe, sizeof hostile.stream.plan_header);
    Take(hostile, 0);
    EXPECT_NE(h_.code(first), Code::kOk);
    EXPECT_NE(h_.code(first), Code::kUnknown) << report;
    TakeBoth(0, Step::kStreamPulled);
  }
}

// What a CPU's publish carries is no report of kernels.
TEST_F(RankMoves, APublishThatIsNoStreamsIsRefused) {
  const auto announced = TakeBoth(0, Step::kStreamAnnounce);
  const Submission foreign = h_.Step(1, h_.operation(announced[1]), Step::kPublish);
  EXPECT_EQ(h_.code(foreign), Code::kInvalidArgument);
  EXPECT_THAT(h_.text(foreign), HasSubstr("does not expect this step of rank 1 now"));
  EXPECT_EQ(h_.code(TakeBoth(0, Step::kStreamPublish)[1]), Code::kOk);
}

// Peers read as far as the group's sizes go.
TEST_F(RankMoves, ARegionThatHoldsLessThanTheGroupsSizesIsRefused) {
  Take(0, 0, Step::kStreamAnnounce);
  shm::SlotRequest request = Request(1, 0, Step::kStreamAnnounce);
  --request.stage_bytes;
  const Submission submission = Take(request, 0);
  EXPECT_EQ(h_.code(submission), Code::kInvalidArgument);
  EXPECT_THAT(h_.text(submission), HasSubstr("recv_capacity_per_rank=64"));
}

TEST_F(RankMoves, MoreSlotsThanTheGroupHasAreRefused) {
  Take(0, 0, Step::kStreamAnnounce);
  shm::SlotRequest request = Request(1, 0, Step::kStreamAnnounce);
  request.recv_capacity = 65;
  const Submission submission = Take(request, 0);
  EXPECT_EQ(h_.code(submission), Code::kInvalidArgument);
  EXPECT_THAT(h_.text(submission), HasSubstr("recv_capacity is 65"));
}

TEST_F(RankMoves, NoOtherOperationHasTheStreamRegionsWhileARankOfAFailedOneMayStage) {
  TakeBoth(0, Step::kStreamAnnounce);
  PublishFault(KernelFault::kPlanChecksum);
  const auto next = TakeBoth(1, Step::kStreamAnnounce);
  EXPECT_FALSE(h_.answered(next[0])) << "rank 0 has not come to its publish";
  Take(0, 0, Step::kStreamPublish);
  EXPECT_EQ(h_.code(next[0]), Code::kOk) << h_.text(next[0]);
  EXPECT_EQ(h_.code(next[1]), Code::kOk);
}

TEST_F(RankMoves, ARanksStagingIsNotReusedWhileAProcessThatMayReadOrWriteItLives) {
  TakeBoth(0, Step::kStreamAnnounce);
  const absl::Status gone = absl::AbortedError("the session of rank 1 has ended");
  h_.exchange.SessionDead(h_.SessionOf(1), gone, /*process_alive=*/true, h_.now);
  h_.EndTenant(gone);
  const Submission published = Take(0, 0, Step::kStreamPublish);
  EXPECT_EQ(h_.code(published), Code::kAborted);
  EXPECT_THAT(h_.arenas, SizeIs(1));
  h_.SessionDead(h_.SessionOf(1), gone);
  EXPECT_THAT(h_.arenas, IsEmpty());
}

TEST_F(RankMoves, RanksOnSeveralNodesAreToldToLetTheWorkersMoveTheRows) {
  TenantStart start = h_.Start(OnDevice(), kGroup, 2);
  start.members[1].session = SessionId();
  start.nodes = {PeerWorker{}, PeerWorker{}};
  ASSERT_TRUE(h_.exchange.StartTenant(std::move(start), h_.now).ok());
  h_.Perform();
  shm::SlotRequest request = Request(0, 0, Step::kStreamAnnounce);
  request.formation = 2;
  const Submission submission = Take(request, 0);
  EXPECT_EQ(h_.code(submission), Code::kUnimplemented);
  EXPECT_THAT(h_.text(submission),
              AllOf(HasSubstr("several devices or nodes"), HasSubstr("executor worker")));
}

}  // namespace
}  // namespace epd
