// Goal: sizes are known for the plan that they were read of and for no other, and the least used go first.
#include "daemon/backend/cuda/members/known_counts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace epd::cuda {
namespace {

using ::testing::IsNull;
using ::testing::Pointee;

const int kArenas[2] = {};

TEST(KnownCountsTest, AreThoseOfOnePlan) {
  KnownCounts known(4);
  const KnownPlan plan = {&kArenas[0], 1, 2, 3};
  known.Keep(plan, {{5, 6}, {1}});
  EXPECT_THAT(known.Find(plan), Pointee(PlanSizes{{5, 6}, {1}}));
  EXPECT_THAT(known.Find({&kArenas[1], 1, 2, 3}), IsNull()) << "of another tenant";
  EXPECT_THAT(known.Find({&kArenas[0], 9, 2, 3}), IsNull());
  EXPECT_THAT(known.Find({&kArenas[0], 1, 9, 3}), IsNull()) << "before the group was formed anew";
  EXPECT_THAT(known.Find({&kArenas[0], 1, 2, 9}), IsNull());
  known.Keep(plan, {{7, 8}});
  EXPECT_THAT(known.Find(plan), Pointee(PlanSizes{{7, 8}}));
  known.Forget(plan);
  EXPECT_THAT(known.Find(plan), IsNull());
}

TEST(KnownCountsTest, TheLeastUsedGoFirst) {
  KnownCounts known(2);
  const auto plan = [](uint64_t id) { return KnownPlan{&kArenas[0], 1, 2, id}; };
  known.Keep(plan(1), {{1}});
  known.Keep(plan(2), {{2}});
  EXPECT_THAT(known.Find(plan(1)), Pointee(PlanSizes{{1}}));
  known.Keep(plan(3), {{3}});
  EXPECT_THAT(known.Find(plan(2)), IsNull());
  EXPECT_THAT(known.Find(plan(1)), Pointee(PlanSizes{{1}}));
  EXPECT_THAT(known.Find(plan(3)), Pointee(PlanSizes{{3}}));
}

TEST(KnownCountsTest, ArenasThatGoTakeTheirsAlong) {
  KnownCounts known(4);
  known.Keep({&kArenas[0], 1, 2, 3}, {{1}});
  known.Keep({&kArenas[1], 1, 2, 3}, {{2}});
  known.ForgetArenas(&kArenas[0]);
  EXPECT_THAT(known.Find({&kArenas[0], 1, 2, 3}), IsNull());
  EXPECT_THAT(known.Find({&kArenas[1], 1, 2, 3}), Pointee(PlanSizes{{2}}));
}

}  // namespace
}  // namespace epd::cuda
