// Goal: a tenant on a device has arenas of its own with an eager buffer for streams, its operations find memory that is there
// already, and nothing that a device still writes is given back or given to others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "daemon/worker/staging/device_arenas.h"
#include "tests/unit/daemon/worker/exchange_harness.h"

namespace epd {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kDevice = uint64_t{16} << 20;

class ExchangeDeviceTest : public ::testing::Test {
 protected:
  static GroupSpec OnDevice() {
    GroupSpec spec = ExchangeHarness::Spec(2);
    spec.executor = Executor::kWorker;
    spec.backend = "cuda";
    return spec;
  }
  shm::SlotRequest Prepare(uint32_t rank) const {
    shm::SlotRequest request = h_.Request(rank);
    request.out_bytes = 32;
    return request;
  }
  // Announces and publishes on both ranks; the rows are being moved.
  OperationId StartMove() {
    const std::vector<Submission> announced = h_.AnnounceAll({Prepare(0), Prepare(1)});
    const OperationId operation = h_.operation(announced[0]);
    offset_ = h_.answers.at(announced[0]).region.offset;
    for (uint32_t r = 0; r < 2; ++r)
      published_.push_back(h_.Step(r, operation, shm::Step::kPublish));
    EXPECT_THAT(h_.moves, SizeIs(1));
    return operation;
  }

  ExchangeHarness h_{{.staging_bytes = kPool, .device_staging_bytes = kDevice}};
  std::vector<Submission> published_;
  uint64_t offset_ = 0;
};

TEST_F(ExchangeDeviceTest, ArenasAreOfTheTenantsOwnDeviceAndHoldAStreamRegionAtTheirStart) {
  const DeviceArenas planned = PlanDeviceArenas(OnDevice());
  EXPECT_EQ(planned.arena_bytes, 2 * planned.stream_region_bytes);
  ASSERT_TRUE(h_.exchange.StartTenant(h_.Start(OnDevice()), h_.now).ok());
  bool created = false;
  bool reported = false;
  for (const Effect& effect : h_.exchange.TakeEffects()) {
    if (const auto* create = std::get_if<CreateArenas>(&effect)) {
      created = true;
      EXPECT_EQ(create->backend, "cuda");
      EXPECT_EQ(create->arena_bytes, planned.arena_bytes);
    } else if (const auto* ready = std::get_if<ReportTenantReady>(&effect)) {
      reported = true;
      EXPECT_EQ(ready->stream_region_offset, 0u);
      EXPECT_EQ(ready->stream_region_bytes, planned.stream_region_bytes);
    }
  }
  EXPECT_TRUE(created && reported);
}

TEST_F(ExchangeDeviceTest, AnOperationLiesBehindTheStreamRegionAndNeedsNoPages) {
  h_.StartTenant(OnDevice());
  const OperationId operation = StartMove();
  EXPECT_EQ(offset_, PlanDeviceArenas(OnDevice()).stream_region_bytes);
  EXPECT_THAT(h_.commits, IsEmpty());
  EXPECT_FALSE(h_.answered(published_[0])) << "the device has not said that it is done";
  h_.RowsMoved(operation);
  EXPECT_EQ(h_.code(published_[0]), absl::StatusCode::kOk);
}

TEST_F(ExchangeDeviceTest, WhatTheDeviceStillWritesIsNotGivenBackWhenTheTenantEnds) {
  h_.StartTenant(OnDevice());
  const OperationId operation = StartMove();
  h_.EndTenant(absl::AbortedError("ended"));
  EXPECT_EQ(h_.code(published_[0]), absl::StatusCode::kAborted);
  EXPECT_THAT(h_.arenas, SizeIs(1));
  h_.RowsMoved(operation);
  EXPECT_THAT(h_.arenas, IsEmpty());
}

TEST_F(ExchangeDeviceTest, AGroupThatTheDeviceCannotHoldIsRefusedWithTheNumbers) {
  GroupSpec large = OnDevice();
  large.hidden = 1 << 16;
  const absl::Status refused = h_.exchange.StartTenant(h_.Start(large), h_.now);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("cuda_staging_bytes"));
  h_.StartTenant(OnDevice(), kGroup, 2);
}

// Two GPUs of one node: by the node alone rank 1 would be taken for this worker's.
TEST_F(ExchangeDeviceTest, AMemberIsAWorkerAndNotANode) {
  const auto start = [](ExchangeHarness& h, const std::string& address) {
    TenantStart start = h.Start(OnDevice());
    for (RankHolder& member : start.members) member.node = NodeId{"a"};
    start.members[0].worker = WorkerName{0};
    start.members[1].worker = WorkerName{1};
    start.members[1].session = SessionId();
    start.nodes = {{NodeId{"a"}, Incarnation(7), "a:1", WorkerName{0}},
                   {NodeId{"a"}, Incarnation(8), address, WorkerName{1}}};
    ASSERT_TRUE(h.exchange.StartTenant(std::move(start), h.now).ok());
    h.Perform();
  };
  const ExchangeOptions options{
      .staging_bytes = kPool, .device_staging_bytes = kDevice, .self = Incarnation(7)};
  ExchangeHarness mute(options);
  start(mute, "");
  EXPECT_THAT(mute.text(mute.Take(Prepare(0))),
              HasSubstr("node a cuda:1 of rank 1 takes no streams"));
  ExchangeHarness h(options);
  start(h, "a:3");
  const Submission submission = h.Take(Prepare(0));
  EXPECT_FALSE(h.answered(submission)) << "rank 1 has not announced";
  h.exchange.PeerLost(Incarnation(8), absl::UnavailableError("the stream is lost"), h.now);
  h.Perform();
  EXPECT_THAT(h.text(submission), HasSubstr("rank=1"));
}

}  // namespace
}  // namespace epd
