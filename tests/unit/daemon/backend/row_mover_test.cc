// Goal: rows that the worker moves have the bits that the ranks would have pulled themselves, and a
// corrupt or lying rank is an error that names it.
#include "daemon/backend/cpu/row_mover.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "proto/epd/v1/region_layout.h"
#include "tests/unit/kernels/exchange.h"

namespace epd {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kArenaBytes = 4 << 20;
constexpr uint64_t kRegion = 4096;  // Not at the start, so that a forgotten offset shows.
constexpr uint64_t kRowBytes = 16 * 4;
constexpr int64_t kCapacity = 4096;

class RowMover : public ::testing::Test {
 protected:
  RowMover() {
    for (int r = 0; r < problem_.num_ranks; ++r) {
      rows_.push_back(RandomBytes(random_, problem_.NumTokens(r) * kRowBytes));
      weights_.push_back(RandomFloats(random_, problem_.topk[r].size()));
    }
    const RoutingSpec spec = problem_.Spec();
    group_ = {.group_id = kTestIds.group_id,
              .epoch = kTestIds.epoch,
              .spec = {},
              .expert_owner = problem_.use_table ? problem_.owner : std::vector<int32_t>()};
    group_.spec.num_experts = static_cast<uint32_t>(spec.num_experts);
    group_.spec.max_tokens_per_rank = static_cast<uint32_t>(spec.max_tokens);
    job_ = {.kind = shm::Kind::kDispatch,
            .dtype = 1,
            .has_weights = true,
            .top_k = static_cast<uint32_t>(spec.top_k),
            .alignment = static_cast<uint32_t>(spec.alignment),
            .row_bytes = kRowBytes,
            .plan_id = kTestIds.plan_id,
            .parts = {}};
  }

  // Puts plan and stage of a rank into its region as a client does, and announces them.
  void Stage(int rank, const ::epd::Region& stage, uint64_t out_bytes) {
    char* region = arenas_->Map(rank).value() + kRegion;
    const RoutingPlanView& view = plans_.View(rank);
    EXPECT_OK(StagePlan(view, region, view.used_bytes));
    const uint64_t begin = shm::StageOffset(view.used_bytes);
    std::memcpy(region + begin, stage.data(), stage.size());
    const uint64_t stage_bytes = begin + stage.size();
    job_.parts.push_back({.arena = rank,
                          .num_tokens = static_cast<uint64_t>(problem_.NumTokens(rank)),
                          .recv_capacity = kCapacity,
                          .stage_offset = kRegion,
                          .stage_bytes = stage_bytes,
                          .out_offset = kRegion + shm::RoundUpToRegionAlignment(stage_bytes),
                          .out_bytes = out_bytes});
  }
  void StageDispatch() {
    stages_ = StageScatters(problem_, plans_, rows_, weights_, kRowBytes);
    for (int r = 0; r < problem_.num_ranks; ++r) {
      Stage(r, stages_[r], shm::OutBytes(kCapacity * kRowBytes, kCapacity));
    }
  }
  const char* Out(int rank) { return arenas_->Map(rank).value() + job_.parts[rank].out_offset; }
  absl::Status Move() { return MoveRowsOnCpu(*arenas_, group_, job_); }
  std::string Outputs(uint64_t bytes) const;

  Random random_{20240611};
  reference::Problem problem_ = RandomProblem(random_, Routing::kUniform);
  Plans plans_{problem_};
  std::vector<reference::Bytes> rows_;
  std::vector<std::vector<float>> weights_;
  std::vector<::epd::Region> stages_;
  std::unique_ptr<MemfdArenas> arenas_ =
      MemfdArenas::Create(problem_.num_ranks, kArenaBytes).value();
  MoveGroup group_;
  MoveJob job_;
};

TEST_F(RowMover, DispatchHasTheBitsOfTheClientExecutor) {
  StageDispatch();
  ASSERT_EQ(Move(), absl::OkStatus());
  const std::vector<StageRef> refs = Refs(stages_);
  for (int r = 0; r < problem_.num_ranks; ++r) {
    ::epd::Region rows(kCapacity * kRowBytes);
    std::vector<float> weights(kCapacity);
    PullScatterArgs args;
    args.plan = &plans_.View(r);
    args.sources = refs.data();
    args.row_bytes = kRowBytes;
    args.capacity = kCapacity;
    args.recv_rows = rows.data();
    args.recv_weights = weights.data();
    EXPECT_OK(PullScatter(args));
    EXPECT_EQ(std::memcmp(Out(r), rows.data(), rows.size()), 0) << "rank " << r;
    EXPECT_EQ(std::memcmp(Out(r) + shm::OutWeightsOffset(rows.size()), weights.data(),
                          kCapacity * sizeof(float)),
              0)
        << "rank " << r;
  }
}

TEST_F(RowMover, ARankOfAnotherNodeGivesRowsFromTheStartOfItsRegionAndGetsNone) {
  StageDispatch();
  ASSERT_EQ(Move(), absl::OkStatus());
  const int there = problem_.num_ranks - 1;
  const uint64_t bytes = shm::OutBytes(kCapacity * kRowBytes, kCapacity);
  std::vector<std::string> together;
  for (int r = 0; r < there; ++r) together.emplace_back(Out(r), bytes);
  char* region = arenas_->Map(there).value() + kRegion;
  const uint64_t region_bytes = kArenaBytes - kRegion;
  std::memset(region, 0, region_bytes);
  std::memcpy(region, stages_[there].data(), stages_[there].size());
  const std::string before(region, region_bytes);
  job_.parts[there] = {
      .arena = there, .local = false, .stage_offset = kRegion, .stage_bytes = region_bytes};
  for (int r = 0; r < there; ++r) {
    std::memset(arenas_->Map(r).value() + job_.parts[r].out_offset, 0, bytes);
  }
  ASSERT_EQ(Move(), absl::OkStatus());
  for (int r = 0; r < there; ++r) EXPECT_EQ(std::string(Out(r), bytes), together[r]) << r;
  EXPECT_EQ(std::string(region, region_bytes), before);
}

TEST_F(RowMover, CombineHasTheBitsOfTheClientExecutor) {
  job_.kind = shm::Kind::kCombine;
  job_.has_weights = false;
  std::vector<reference::Bytes> expert_rows;
  std::vector<std::vector<float>> capacity(problem_.num_ranks, std::vector<float>(kCapacity));
  for (int r = 0; r < problem_.num_ranks; ++r) {
    expert_rows.push_back(RandomRows(random_, kCapacity * kRowBytes, DataType::kFloat32));
  }
  stages_ = StageGathers(problem_, plans_, expert_rows, capacity, kRowBytes, false);
  for (int r = 0; r < problem_.num_ranks; ++r) {
    Stage(r, stages_[r], problem_.NumTokens(r) * kRowBytes);
  }
  ASSERT_EQ(Move(), absl::OkStatus());
  const std::vector<StageRef> refs = Refs(stages_);
  for (int r = 0; r < problem_.num_ranks; ++r) {
    ::epd::Region out(problem_.NumTokens(r) * kRowBytes);
    PullGatherArgs args;
    args.plan = &plans_.View(r);
    args.sources = refs.data();
    args.row_bytes = kRowBytes;
    args.num_tokens = problem_.NumTokens(r);
    args.out = out.data();
    EXPECT_OK(PullGather(args));
    EXPECT_EQ(std::memcmp(Out(r), out.data(), out.size()), 0) << "rank " << r;
  }
}

// Of all ranks, one after another.
std::string RowMover::Outputs(uint64_t bytes) const {
  std::string all;
  for (const MovePart& part : job_.parts)
    all.append(arenas_->Map(part.arena).value() + part.out_offset, bytes);
  return all;
}

TEST_F(RowMover, PartsOfAnySizeMakeTheSameRowsAsTheWhole) {
  StageDispatch();
  const uint64_t bytes = shm::OutBytes(kCapacity * kRowBytes, kCapacity);
  ASSERT_EQ(Move(), absl::OkStatus());
  const std::string whole = Outputs(bytes);
  int before = 2;
  for (const uint64_t part : {100'000, 1000, 1}) {
    for (const MovePart& one : job_.parts)
      std::memset(arenas_->Map(one.arena).value() + one.out_offset, 0xee, bytes);
    RowMove move(*arenas_, group_, job_);
    int num_parts = 0;
    std::optional<absl::Status> ended;
    while (!ended.has_value()) {
      ended = move.Some(part);
      ++num_parts;
    }
    EXPECT_EQ(*ended, absl::OkStatus());
    EXPECT_EQ(Outputs(bytes), whole) << "parts of " << part;
    EXPECT_GT(num_parts, before);
    before = num_parts;
  }
}

TEST_F(RowMover, PlansThatAreNotKeptAreCopiedAndCheckedOnceMore) {
  StageDispatch();
  const uint64_t bytes = shm::OutBytes(kCapacity * kRowBytes, kCapacity);
  ASSERT_EQ(Move(), absl::OkStatus());
  const std::string whole = Outputs(bytes);
  for (const MovePart& one : job_.parts)
    std::memset(arenas_->Map(one.arena).value() + one.out_offset, 0xee, bytes);
  for (const bool damages : {false, true}) {
    RowMove move(*arenas_, group_, job_, /*kept_bytes=*/0);
    std::optional<absl::Status> ended;
    int num_parts = 0;
    while (!ended.has_value()) {
      ended = move.Some(1 << 30);
      ++num_parts;
      // The others' plans were taken by now.
      if (damages && num_parts == 3 * problem_.num_ranks + 10)
        arenas_->Map(problem_.num_ranks - 1).value()[kRegion + 200] ^= 1;
    }
    EXPECT_EQ(ended->code(), damages ? absl::StatusCode::kDataLoss : absl::StatusCode::kOk);
    if (!damages) {
      EXPECT_EQ(Outputs(bytes), whole);
    }
  }
}

TEST_F(RowMover, WhatADamagedPlanOrStageIsDoesNotDependOnTheParts) {
  StageDispatch();
  const uint64_t begin = shm::StageOffset(plans_.View(0).used_bytes);
  for (const uint64_t at : {uint64_t{200}, begin}) {
    arenas_->Map(0).value()[kRegion + at] ^= 1;
    RowMove move(*arenas_, group_, job_);
    std::optional<absl::Status> ended;
    while (!ended.has_value()) ended = move.Some(64);
    EXPECT_EQ(*ended, Move());
    EXPECT_EQ(ended->code(), absl::StatusCode::kDataLoss);
    arenas_->Map(0).value()[kRegion + at] ^= 1;
  }
}

TEST_F(RowMover, PrepareGivesEveryRankTheCountsOfAll) {
  job_.kind = shm::Kind::kPrepare;
  const uint64_t row = problem_.num_experts * sizeof(int32_t);
  for (int r = 0; r < problem_.num_ranks; ++r) {
    std::memcpy(arenas_->Map(r).value() + kRegion,
                plans_.Counts().data() + r * problem_.num_experts, row);
    job_.parts.push_back({.arena = r,
                          .num_tokens = 0,
                          .recv_capacity = 0,
                          .stage_offset = kRegion,
                          .stage_bytes = row,
                          .out_offset = kRegion + shm::RoundUpToRegionAlignment(row),
                          .out_bytes = row * problem_.num_ranks});
  }
  ASSERT_EQ(Move(), absl::OkStatus());
  for (int r = 0; r < problem_.num_ranks; ++r) {
    EXPECT_EQ(std::memcmp(Out(r), plans_.Counts().data(), row * problem_.num_ranks), 0);
  }
}

TEST_F(RowMover, CorruptPlanIsDataLossThatNamesTheRank) {
  StageDispatch();
  arenas_->Map(0).value()[kRegion + 200] ^= 1;
  const absl::Status status = Move();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0"));
}

TEST_F(RowMover, PlanOfAnotherEpochIsAborted) {
  StageDispatch();
  group_.epoch = kTestIds.epoch + 1;
  EXPECT_EQ(Move().code(), absl::StatusCode::kAborted);
}

TEST_F(RowMover, SizesThatDoNotFitArePointedOut) {
  StageDispatch();
  MoveJob sound = job_;
  job_.parts[0].out_bytes -= 1;
  EXPECT_EQ(Move().code(), absl::StatusCode::kInvalidArgument);
  job_ = sound;
  job_.parts[0].stage_bytes = 100;
  EXPECT_EQ(Move().code(), absl::StatusCode::kDataLoss) << "a truncated plan";
}

TEST_F(RowMover, CorruptStageIsDataLoss) {
  StageDispatch();
  const uint64_t begin = shm::StageOffset(plans_.View(0).used_bytes);
  arenas_->Map(0).value()[kRegion + begin] ^= 1;
  EXPECT_EQ(Move().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace epd
