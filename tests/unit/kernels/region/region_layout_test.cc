// Goal: one rank's region has the same sizes whoever asks, for every kind of operation in every storage. Client, worker
// and both device backends address each other's bytes by them.
#include "kernels/region/region_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "proto/epd/v1/region_layout.h"

namespace epd {
namespace {

using shm::Kind;

// Of odd sizes, so that every rounding shows.
RegionShape Shape(Kind kind, RegionStorage storage) {
  const bool device = storage == RegionStorage::kDeviceWorker;
  return {.num_ranks = 3,
          .num_experts = 7,
          .num_tokens = 5,
          .num_slots = 11,
          .top_k = 2,
          .row_bytes = 20,
          .has_weights = kind == Kind::kDispatch || kind == Kind::kDispatchBackward,
          .plan_bytes = device ? uint64_t{384} : uint64_t{333},
          .num_routes = 9,
          .num_live = 6};
}

struct Golden {
  Kind kind;
  RegionStorage storage;
  uint64_t plan_bytes, stage_at, stage_bytes, out_at, out_bytes, weights_at, out_weights_at;
};

TEST(RegionLayoutTest, SizesOfEveryKindInEveryStorage) {
  constexpr auto kHostRanks = RegionStorage::kHostRanks;
  constexpr auto kHostWorker = RegionStorage::kHostWorker;
  constexpr auto kDeviceRanks = RegionStorage::kDeviceRanks;
  constexpr auto kDeviceWorker = RegionStorage::kDeviceWorker;
  // Scatter stage: 72 + 4 * 4 + 9 * 12, to 64: 256, + 5 * 20. Gather stage: 64 (+ 6 * 4), to 64, + 6 * 20. On a
  // device, of ranks: a gather's 64 + 11 * 4, to 64: 128, + 11 * 20; a scatter's 64 + 10 * 4, to 64: 128, + 10 * 4, to 64: 192,
  // + 96 + 7 * 8, to 64: 384, + 5 * 20.
  const Golden all[] = {
      {Kind::kPrepare, kHostRanks, 0, 0, 28, 64, 0, 0, 0},
      {Kind::kPrepare, kHostWorker, 0, 0, 28, 64, 84, 0, 0},
      {Kind::kPrepare, kDeviceRanks, 0, 0, 28, 64, 0, 0, 0},
      {Kind::kPrepare, kDeviceWorker, 0, 0, 28, 64, 84, 0, 0},
      {Kind::kDispatch, kHostRanks, 0, 0, 356, 384, 0, 128, 256},
      {Kind::kDispatch, kHostWorker, 333, 384, 740, 768, 300, 128, 256},
      {Kind::kDispatch, kDeviceRanks, 0, 0, 484, 512, 0, 0, 0},
      {Kind::kDispatch, kDeviceWorker, 384, 384, 552, 576, 300, 128, 256},
      {Kind::kCombine, kHostRanks, 0, 0, 184, 192, 0, 256, 128},
      {Kind::kCombine, kHostWorker, 333, 384, 568, 576, 100, 256, 128},
      {Kind::kCombine, kDeviceRanks, 0, 0, 348, 384, 0, 0, 0},
      {Kind::kCombine, kDeviceWorker, 384, 384, 604, 640, 100, 256, 128},
      {Kind::kDispatchBackward, kHostRanks, 0, 0, 248, 256, 0, 256, 128},
      {Kind::kDispatchBackward, kHostWorker, 333, 384, 632, 640, 168, 256, 128},
      {Kind::kDispatchBackward, kDeviceRanks, 0, 0, 348, 384, 0, 0, 0},
      {Kind::kDispatchBackward, kDeviceWorker, 384, 384, 684, 704, 168, 256, 128},
      {Kind::kCombineBackward, kHostRanks, 0, 0, 356, 384, 0, 128, 256},
      {Kind::kCombineBackward, kHostWorker, 333, 384, 740, 768, 220, 128, 256},
      {Kind::kCombineBackward, kDeviceRanks, 0, 0, 484, 512, 0, 0, 0},
      {Kind::kCombineBackward, kDeviceWorker, 384, 384, 484, 512, 220, 128, 256},
  };
  for (const Golden& want : all) {
    SCOPED_TRACE("kind " + std::to_string(static_cast<int>(want.kind)) + " storage " +
                 std::to_string(static_cast<int>(want.storage)));
    const RegionLayout got = MakeLayout(want.kind, Shape(want.kind, want.storage), want.storage);
    EXPECT_EQ(got.plan_bytes, want.plan_bytes);
    EXPECT_EQ(got.stage_at, want.stage_at);
    EXPECT_EQ(got.stage_bytes, want.stage_bytes);
    EXPECT_EQ(got.out_at, want.out_at);
    EXPECT_EQ(got.out_bytes, want.out_bytes);
    EXPECT_EQ(got.weights_at, want.weights_at);
    EXPECT_EQ(got.out_weights_at, want.out_weights_at);
    EXPECT_EQ(got.bytes(), want.out_at + want.out_bytes);
    EXPECT_EQ(got.bare_stage_bytes(), want.stage_bytes - want.stage_at);
  }
}

TEST(RegionLayoutTest, WhatARankGivesAndGets) {
  const auto layout = [](Kind kind) {
    return MakeLayout(kind, Shape(kind, RegionStorage::kDeviceWorker),
                      RegionStorage::kDeviceWorker);
  };
  const auto counts = [](const RegionLayout& one) {
    return std::vector<uint64_t>{one.rows, one.num_weights, one.out_rows, one.num_out_weights};
  };
  EXPECT_THAT(counts(layout(Kind::kDispatch)), testing::ElementsAre(5, 10, 11, 11));
  EXPECT_THAT(counts(layout(Kind::kDispatchBackward)), testing::ElementsAre(11, 11, 5, 10));
  const RegionLayout bare = layout(Kind::kCombine);
  EXPECT_EQ(bare.num_weights, 0u);
  EXPECT_EQ(bare.num_out_weights, 0u);
}

TEST(RegionLayoutTest, AGatherOfSeveralNodesBringsItsCounts) {
  RegionShape shape = Shape(Kind::kCombine, RegionStorage::kHostWorker);
  shape.counted_experts = 2;
  const RegionLayout layout = MakeLayout(Kind::kCombine, shape, RegionStorage::kHostWorker);
  EXPECT_EQ(layout.counts_bytes, 64u);  // 3 * 2 * 4, to 64.
  EXPECT_EQ(layout.bare_stage_bytes(), 192u);
  EXPECT_EQ(layout.stage_bytes, 384u + 192u + 64u);
  EXPECT_EQ(MakeLayout(Kind::kDispatch, shape, RegionStorage::kHostWorker).counts_bytes, 0u);
  EXPECT_EQ(MakeLayout(Kind::kCombine, shape, RegionStorage::kDeviceWorker).counts_bytes, 0u);
}

TEST(RegionLayoutTest, StorageFollowsFromDeviceAndExecutor) {
  EXPECT_EQ(MakeStorage(false, false), RegionStorage::kHostRanks);
  EXPECT_EQ(MakeStorage(false, true), RegionStorage::kHostWorker);
  EXPECT_EQ(MakeStorage(true, false), RegionStorage::kDeviceRanks);
  EXPECT_EQ(MakeStorage(true, true), RegionStorage::kDeviceWorker);
}

}  // namespace
}  // namespace epd
