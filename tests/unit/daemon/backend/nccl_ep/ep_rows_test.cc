// Goal: of a plan's operations one reads it and tells it to the library, the others look at its header; a plan that has changed
// and a layout that is not the plan's are errors of all of them; and no more is cleared than nobody writes.
#include "daemon/backend/nccl_ep/ep_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "daemon/backend/cuda/device/cuda_device.h"
#include "daemon/backend/move_routing.h"
#include "kernels/region/region_layout.h"
#include "tests/fakes/cuda/fake_driver.h"
#include "tests/unit/daemon/backend/nccl_ep/plans.h"

namespace epd::nccl_ep {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr uint8_t kDirt = 0xee;
constexpr uint64_t kStageAt = 4096;
constexpr uint64_t kRowBytes = 16;

// An operation of rank 0 of two.
struct Operation {
  explicit Operation(shm::Kind kind) { job.kind = kind; }
  MoveJob job;
  std::unique_ptr<cuda::MemberRows> rows;
  cuda::MovePlaces places;
  cuda::MoveSteps steps;
  std::vector<uint64_t> device;
  std::vector<uint64_t> host;
  absl::Status read;

  const cuda::LibraryCall& call() const { return *steps.library; }
};

class EpRowsTest : public ::testing::Test {
 protected:
  EpRowsTest() {
    for (int i = 0; i < cuda::NumKernels(); ++i) {
      driver_.SetKernel(
          cuda::KernelAt(i).name, [](void**) {}, cuda::KernelAt(i).args_bytes);
    }
    cuda::CudaDeviceOptions options;
    options.staging_bytes = 8 << 20;
    options.image = "an image";
    device_ = *cuda::CudaDevice::Open(driver_.table(), options);
    group_ = {.group_id = kIds.group_id, .epoch = kIds.epoch, .spec = {}, .member_of_rank = {0, 1}};
    group_.spec.num_ranks = 2;
    group_.spec.num_experts = 8;
    group_.spec.max_tokens_per_rank = 8;
    group_.spec.recv_capacity_per_rank = kCapacity;
    group_.spec.hidden = kRowBytes / 2;
    group_.spec.top_k = 2;
    group_.spec.max_token_dtype = Dtype::kBfloat16;
    Prepare({{0, 1, 0, 5, -1, -1, 3, 1, -1, -1, 6, 7}, {0, 4, 3, 1}});
  }

  // Stages the plan and rows of rank 0.
  void Prepare(const std::vector<Indices>& topk) {
    plans_ = MakePlans(
        {.num_ranks = 2, .num_experts = 8, .top_k = 2, .alignment = 4, .max_tokens = 8}, topk);
    arena_.assign((1 << 16) / 8, 0);
    std::memset(arena_.data(), kDirt, arena_.size() * 8);
    std::memcpy(Bytes(arena_) + kStageAt, plans_.memory[0].data(), plans_.memory[0].size() * 8);
  }
  uint64_t num_tokens() const { return plans_.topk[0].size() / 2; }
  static uint8_t* Bytes(std::vector<uint64_t>& memory) {
    return reinterpret_cast<uint8_t*>(memory.data());
  }
  static cuda::DevicePointer At(std::vector<uint64_t>& memory) {
    return reinterpret_cast<cuda::DevicePointer>(memory.data());
  }
  PlanHeader& Staged() { return *reinterpret_cast<PlanHeader*>(Bytes(arena_) + kStageAt); }
  uint8_t* Out(const Operation& one) { return Bytes(arena_) + one.job.parts[0].out_offset; }

  void Start(Operation& one) {
    const bool weights =
        one.job.kind == shm::Kind::kDispatch || one.job.kind == shm::Kind::kDispatchBackward;
    one.job = {
        .kind = one.job.kind,
        .dtype = 2,
        .has_weights = weights,
        .top_k = top_k_,
        .alignment = 4,
        .row_bytes = kRowBytes,
        .plan_id = kIds.plan_id,
        .parts = {
            {.num_tokens = num_tokens(), .recv_capacity = kCapacity, .stage_offset = kStageAt},
            {.local = false}}};
    MovePart& mine = one.job.parts[0];
    layout_ = LayoutOf(group_, one.job, 0, RegionStorage::kDeviceWorker);
    mine.stage_bytes = layout_.stage_bytes;
    mine.out_offset = kStageAt + layout_.out_at;
    mine.out_bytes = layout_.out_bytes;
    one.job.parts[1].stage_bytes = layout_.bytes();
    auto rows = EpRows::Create(group_, one.job, group_.spec, 0, known_);
    ASSERT_TRUE(rows.ok()) << rows.status();
    one.rows = *std::move(rows);
  }
  void Read(Operation& one) {
    one.host.assign(one.rows->read_room().host_bytes / 8 + 1, 0);
    one.places = {.arenas = {At(arena_)}, .host_on_device = At(one.host)};
    Run(one.rows->Read(one.places, device_->shape()));
    one.read = one.rows->TakeRead(Bytes(one.host));
    ++num_reads_;
  }
  // As MemberCommunicator, up to the library's call.
  void Issue(Operation& one) {
    Start(one);
    if (one.rows->read_room().host_bytes > 0) Read(one);
    if (!one.read.ok()) return;
    one.device.assign(one.rows->room().device_bytes / 8, 0);
    one.host.assign(one.rows->room().host_bytes / 8, 0);
    one.places = {.arenas = {At(arena_)},
                  .device = At(one.device),
                  .host_on_device = At(one.host),
                  .host = Bytes(one.host)};
    one.job.parts[1].recv_capacity = kCapacity;
    const std::vector<uint32_t> tokens = {static_cast<uint32_t>(num_tokens()),
                                          static_cast<uint32_t>(plans_.topk[1].size() / 2)};
    EXPECT_THAT(one.rows->tokens_to(), Each(num_tokens()));
    ASSERT_TRUE(one.rows->TakeNumbers(tokens).ok());
    std::memset(Out(one), kDirt, layout_.out_bytes);
    one.steps = one.rows->Steps(one.places, device_->shape());
    Run(one.steps.before);
  }
  // As the library: what it has to say where it is told routes.
  void Finish(Operation& one, std::vector<int32_t> zones = {4, 4, 0, 4}) {
    if (one.call().tells_routes) {
      const int32_t total = zones[0] + zones[1] + zones[2] + zones[3];
      std::memcpy(reinterpret_cast<void*>(one.call().zone_slots), zones.data(), zones.size() * 4);
      std::memcpy(reinterpret_cast<void*>(one.call().total_slots), &total, 4);
    }
    Run(one.steps.after);
  }
  absl::Status Move(Operation& one, const std::vector<int32_t>& zones = {4, 4, 0, 4}) {
    Issue(one);
    if (!one.read.ok() || HasFatalFailure()) return one.read;
    Finish(one, zones);
    return one.rows->Outcome(Bytes(one.host));
  }
  void Run(const cuda::StreamSteps& steps) {
    ASSERT_EQ(steps.Put(device_->driver(), device_->kernels(), device_->streams().at(0)),
              cuda::kSuccess);
    ASSERT_EQ(driver_.RunStreams(), 0);
  }

  static constexpr uint64_t kCapacity =
      128;  // A whole number of the library's units: rows land where they belong.
  cuda::FakeDriver driver_;
  std::unique_ptr<cuda::CudaDevice> device_;
  MoveGroup group_;
  Plans plans_;
  std::vector<uint64_t> arena_;
  RegionLayout layout_;
  EpKnown known_;
  uint32_t top_k_ = 2;  // Of calls.
  int num_reads_ = 0;
};

TEST_F(EpRowsTest, AllOperationsOfAPlanReadItOnceAndTellItOnce) {
  for (const shm::Kind kind : {shm::Kind::kDispatch, shm::Kind::kCombine,
                               shm::Kind::kCombineBackward, shm::Kind::kDispatchBackward}) {
    Operation one(kind);
    EXPECT_EQ(Move(one), absl::OkStatus());
    EXPECT_EQ(one.call().tells_routes, kind == shm::Kind::kDispatch);
    EXPECT_EQ(one.call().handle, 0);
  }
  EXPECT_EQ(num_reads_, 1);
}

TEST_F(EpRowsTest, WhatIsToldAreTheRoutesOfThePlan) {
  Operation one(shm::Kind::kDispatch);
  Issue(one);
  std::vector<int32_t> told(plans_.topk[0].size());
  std::memcpy(told.data(), reinterpret_cast<void*>(one.call().topk), told.size() * 4);
  EXPECT_EQ(told, plans_.topk[0]);
}

TEST_F(EpRowsTest, APlanThatChangesUnderItsIdIsAnErrorForGoodAndTheLibraryIsAskedAsTheOthersThink) {
  Operation before(shm::Kind::kDispatch);
  EXPECT_EQ(Move(before), absl::OkStatus());
  // Other routes of as many tokens, and as many for each expert.
  Prepare({{1, 0, 5, 0, -1, -1, 3, 1, -1, -1, 6, 7}, {0, 4, 3, 1}});
  for (int i = 0; i < 3; ++i) {
    Operation after(shm::Kind::kCombine);
    const absl::Status changed = Move(after);
    EXPECT_TRUE(absl::IsDataLoss(changed)) << changed;
    EXPECT_THAT(changed.message(), HasSubstr("prepare again"));
    EXPECT_FALSE(after.call().tells_routes);
  }
  EXPECT_GT(num_reads_, 1) << "what it went by is forgotten";
}

TEST_F(EpRowsTest, APlanOfOtherTokensUnderAnOldIdIsToldAnew) {
  Operation before(shm::Kind::kDispatch);
  EXPECT_EQ(Move(before), absl::OkStatus());
  Prepare({{0, 1}, {0, 2, 3, 1}});
  Operation after(shm::Kind::kDispatch);
  EXPECT_EQ(Move(after, {4, 4, 4, 4}).code(), absl::StatusCode::kOk);
  EXPECT_TRUE(after.call().tells_routes) << "a handle takes as many tokens as it was told";
  EXPECT_EQ(after.call().num_tokens, 1);
}

// A client says what it likes.
TEST_F(EpRowsTest, ACallOfAnotherTopKThanItsPlansGoesByNothingThatWasReadBefore) {
  Operation before(shm::Kind::kDispatch);
  EXPECT_EQ(Move(before), absl::OkStatus());
  top_k_ = 1;
  Operation after(shm::Kind::kDispatch);
  EXPECT_FALSE(Move(after).ok());
  EXPECT_EQ(num_reads_, 2);
  EXPECT_FALSE(after.steps.library.has_value()) << "its turn never comes";
}

TEST_F(EpRowsTest, APlanThatChangesBetweenItsReadAndItsTurnIsAnError) {
  Operation one(shm::Kind::kDispatch);
  Start(one);
  Read(one);
  ASSERT_EQ(one.read, absl::OkStatus());
  ++Staged().checksum;
  Operation goes_by_it(shm::Kind::kDispatch);
  EXPECT_TRUE(absl::IsDataLoss(Move(goes_by_it)));
}

TEST_F(EpRowsTest, ALayoutThatIsNotThePlansIsAnErrorOfAllThatGoByIt) {
  Operation first(shm::Kind::kDispatch);
  const absl::Status other = Move(first, {4, 4, 4, 4});
  EXPECT_TRUE(absl::IsInternal(other));
  EXPECT_THAT(other.message(), AllOf(HasSubstr("in zones of 4,4,4,4 slots, 16 in all"),
                                     HasSubstr("expected 4,4,0,4, 12 in all")));
  Operation second(shm::Kind::kCombine);
  EXPECT_EQ(Move(second), other);
  EXPECT_FALSE(second.call().tells_routes);
}

TEST_F(EpRowsTest, AScatterClearsWhatIsBehindTheZonesAndNoMore) {
  for (const shm::Kind kind : {shm::Kind::kDispatch, shm::Kind::kCombineBackward}) {
    Operation one(kind);
    Issue(one);
    const uint8_t* out = Out(one);
    constexpr uint64_t kLive = 12;
    EXPECT_TRUE(std::all_of(out, out + kLive * kRowBytes, [](uint8_t b) { return b == kDirt; }));
    EXPECT_TRUE(std::all_of(out + kLive * kRowBytes, out + kCapacity * kRowBytes,
                            [](uint8_t b) { return b == 0; }));
    if (kind != shm::Kind::kDispatch) continue;
    const uint8_t* weights = out + layout_.out_weights_at;
    EXPECT_TRUE(std::all_of(weights + kLive * 4, weights + kCapacity * 4,
                            [](uint8_t b) { return b == 0; }));
  }
}

TEST_F(EpRowsTest, AGatherClearsTokensWithoutARouteAndNoneBeforeOrBehind) {
  Operation one(shm::Kind::kCombine);
  Issue(one);
  std::vector<int> cleared;
  for (uint64_t t = 0; t < num_tokens(); ++t) {
    const uint8_t* row = Out(one) + t * kRowBytes;
    if (std::all_of(row, row + kRowBytes, [](uint8_t b) { return b == 0; })) {
      cleared.push_back(static_cast<int>(t));
    }
  }
  EXPECT_THAT(cleared, ::testing::ElementsAre(2, 3, 4)) << "tokens 2 and 4 have none";
}

TEST_F(EpRowsTest, AGatherWithoutSuchTokensClearsNothing) {
  Prepare({{0, 1, 0, 5}, {0, 2, 3, 1}});
  Operation one(shm::Kind::kCombine);
  Issue(one);
  EXPECT_TRUE(
      std::all_of(Out(one), Out(one) + layout_.out_bytes, [](uint8_t b) { return b == kDirt; }));
}

}  // namespace
}  // namespace epd::nccl_ep
