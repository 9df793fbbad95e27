// Goal: what a group will need is known before anything is allocated.
#include "daemon/rpc/memory_plan.h"

#include "gtest/gtest.h"

namespace epd {
namespace {

GroupShape Shape() {
  GroupShape shape;
  shape.num_ranks = 4;
  shape.num_experts = 8;
  shape.top_k = 2;
  shape.max_tokens_per_rank = 512;
  shape.recv_capacity_per_rank = 1280;
  shape.row_bytes = 4096;
  return shape;
}

TEST(MemoryPlanTest, StageHoldsEveryTokenOnceAndEverySlotOnce) {
  const auto plan = PlanGroupMemory(Shape());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_GE(plan->dispatch_bytes_per_rank, 512u * 4096);
  EXPECT_LE(plan->dispatch_bytes_per_rank, 512u * 4096 + 64 * 1024)
      << "tokens are staged once, not per expert";
  EXPECT_GE(plan->combine_bytes_per_rank, 1280u * 4096);
  EXPECT_LE(plan->combine_bytes_per_rank, 1280u * 4096 + 8192);
  EXPECT_EQ(plan->dispatch_bytes_per_rank % 4096, 0u);
}

TEST(MemoryPlanTest, WorkerExecutorNeedsTheOutputsToo) {
  GroupShape shape = Shape();
  shape.worker_executor = true;
  const auto with = PlanGroupMemory(shape);
  const auto without = PlanGroupMemory(Shape());
  ASSERT_TRUE(with.ok() && without.ok());
  EXPECT_GE(with->dispatch_bytes_per_rank, without->dispatch_bytes_per_rank + 1280u * 4096);
  EXPECT_GE(with->combine_bytes_per_rank, without->combine_bytes_per_rank + 512u * 4096);
}

TEST(MemoryPlanTest, NoLimitOnTopKMeansAsManyAsThereAreExperts) {
  GroupShape shape = Shape();
  shape.top_k = 0;
  GroupShape eight = Shape();
  eight.top_k = 8;
  EXPECT_EQ(PlanGroupMemory(shape)->handle_mem_bytes, PlanGroupMemory(eight)->handle_mem_bytes);
}

TEST(MemoryPlanTest, ShapeThatTheKernelsCannotServeIsRefused) {
  GroupShape shape = Shape();
  shape.num_ranks = 100000;
  EXPECT_TRUE(absl::IsInvalidArgument(PlanGroupMemory(shape).status()));
}

}  // namespace
}  // namespace epd
