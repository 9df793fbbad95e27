// Goal: what a group will need is known before anything is allocated.
#include "daemon/rpc/node_api/memory_plan.h"

#include <string>

#include "gtest/gtest.h"
#include "proto/epd/v1/limits.h"

namespace epd {
namespace {

constexpr uint64_t kPool = uint64_t{1} << 30;

GroupShape Shape() {
  GroupShape shape;
  shape.num_ranks = 4;
  shape.num_experts = 8;
  shape.top_k = 2;
  shape.max_tokens_per_rank = 512;
  shape.recv_capacity_per_rank = 1280;
  shape.hidden = 1024;
  shape.element_bytes = 4;
  return shape;
}

TEST(MemoryPlanTest, StageHoldsEveryTokenOnceAndEverySlotOnce) {
  const auto plan = PlanGroupMemory(Shape(), kPool);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_GE(plan->dispatch_bytes_per_rank(), 512u * 4096);
  EXPECT_LE(plan->dispatch_bytes_per_rank(), 512u * 4096 + 64 * 1024)
      << "tokens are staged once, not per expert";
  EXPECT_GE(plan->combine_bytes_per_rank(), 1280u * 4096);
  EXPECT_LE(plan->combine_bytes_per_rank(), 1280u * 4096 + 8192);
  EXPECT_EQ(plan->dispatch_bytes_per_rank() % 4096, 0u);
}

TEST(MemoryPlanTest, TheVerdictIsThatOfThePoolThatIsThere) {
  const auto judged = [](uint64_t pool, uint64_t committed) {
    v1::PlanMemoryResponse plan = *PlanGroupMemory(Shape(), pool);
    JudgePlan(4, pool, committed, plan);
    return plan;
  };
  const v1::PlanMemoryResponse plan = judged(kPool, 0);
  EXPECT_TRUE(plan.fits());
  EXPECT_EQ(plan.verdict().rfind("fits beside", 0), 0u) << plan.verdict();
  EXPECT_EQ(plan.total_bytes_per_node(), 4 * plan.total_bytes_per_rank());
  EXPECT_EQ(plan.total_bytes_per_rank(),
            plan.eager_bytes_per_rank() + plan.prepare_bytes_per_rank() +
                plan.combine_bytes_per_rank() + plan.dispatch_backward_bytes_per_rank());
  EXPECT_EQ(judged(kPool, kPool).verdict().rfind("fits while other groups rest", 0), 0u);
  const uint64_t one = 4 * plan.dispatch_backward_bytes_per_rank();
  EXPECT_EQ(judged(one + 4096, 0).verdict().rfind("fits one operation at a time", 0), 0u);
  EXPECT_FALSE(judged(one - 1, 0).fits());
  EXPECT_EQ(judged(one - 1, 0).verdict().rfind("does not fit", 0), 0u);
}

TEST(MemoryPlanTest, WorkerExecutorNeedsTheOutputsToo) {
  GroupShape shape = Shape();
  shape.worker_executor = true;
  const auto with = PlanGroupMemory(shape, kPool);
  const auto without = PlanGroupMemory(Shape(), kPool);
  ASSERT_TRUE(with.ok() && without.ok());
  EXPECT_GE(with->dispatch_bytes_per_rank(), without->dispatch_bytes_per_rank() + 1280u * 4096);
  EXPECT_GE(with->combine_bytes_per_rank(), without->combine_bytes_per_rank() + 512u * 4096);
}

TEST(MemoryPlanTest, NoLimitOnTopKMeansAsManyAsThereAreExperts) {
  GroupShape shape = Shape();
  shape.top_k = 0;
  GroupShape eight = Shape();
  eight.top_k = 8;
  EXPECT_EQ(PlanGroupMemory(shape, kPool)->handle_mem_bytes(),
            PlanGroupMemory(eight, kPool)->handle_mem_bytes());
}

TEST(MemoryPlanTest, RowsOfWideElementsAreScatteredAtTheirWidthAndSummedAtFourBytes) {
  GroupShape shape = Shape();
  shape.element_bytes = 8;
  const auto wide = PlanGroupMemory(shape, kPool);
  const auto narrow = PlanGroupMemory(Shape(), kPool);
  ASSERT_TRUE(wide.ok() && narrow.ok());
  EXPECT_EQ(wide->dispatch_bytes_per_rank() - narrow->dispatch_bytes_per_rank(), 512u * 4096);
  EXPECT_EQ(wide->combine_bytes_per_rank(), narrow->combine_bytes_per_rank());
}

TEST(MemoryPlanTest, ElementsOfNoBytesAndOfMoreThanEightAreRefused) {
  for (const uint64_t bytes : {0, 9}) {
    GroupShape shape = Shape();
    shape.element_bytes = bytes;
    const auto plan = PlanGroupMemory(shape, kPool);
    EXPECT_TRUE(absl::IsInvalidArgument(plan.status()));
    EXPECT_NE(plan.status().message().find("element_bytes"), std::string::npos);
  }
}

TEST(MemoryPlanTest, WhatNoGroupMayHaveIsRefusedByNameInsteadOfOverflowing) {
  const auto refused = [](const char* field, auto change) {
    GroupShape shape = Shape();
    change(shape);
    const auto plan = PlanGroupMemory(shape, kPool);
    ASSERT_TRUE(absl::IsInvalidArgument(plan.status())) << field;
    EXPECT_NE(plan.status().message().find(field), std::string::npos) << plan.status();
  };
  refused("hidden", [](GroupShape& shape) { shape.hidden = uint64_t{1} << 62; });
  refused("hidden", [](GroupShape& shape) { shape.hidden = limits::kHidden + 1; });
  refused("hidden", [](GroupShape& shape) { shape.hidden = 0; });
  refused("max_tokens_per_rank",
          [](GroupShape& shape) { shape.max_tokens_per_rank = limits::kSlots + 1; });
  refused("recv_capacity_per_rank",
          [](GroupShape& shape) { shape.recv_capacity_per_rank = limits::kSlots + 1; });
}

TEST(MemoryPlanTest, AShapeAtAllItsLimitsDoesNotFit) {
  GroupShape largest = Shape();
  largest.num_ranks = limits::kPlanRanks;
  largest.hidden = limits::kHidden;
  largest.element_bytes = limits::kMovedElementBytes;
  largest.recv_capacity_per_rank = limits::kSlots;
  largest.worker_executor = true;
  v1::PlanMemoryResponse plan = *PlanGroupMemory(largest, kPool);
  EXPECT_GT(plan.dispatch_bytes_per_rank(), uint64_t{limits::kSlots} * limits::kHidden);
  JudgePlan(uint32_t{1} << 12, kPool, 0, plan);
  EXPECT_EQ(plan.total_bytes_per_node(), UINT64_MAX);
  EXPECT_FALSE(plan.fits());
}

TEST(MemoryPlanTest, ShapeThatTheKernelsCannotServeIsRefused) {
  GroupShape shape = Shape();
  shape.num_ranks = 100000;
  EXPECT_TRUE(absl::IsInvalidArgument(PlanGroupMemory(shape, kPool).status()));
}

}  // namespace
}  // namespace epd
