// Goal: what a group's operators read never falls, whatever becomes of its formations and workers.
#include "daemon/node/workers/group_totals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace epd {
namespace {

using testing::ElementsAre;

constexpr GroupId kGroup{7};
constexpr Incarnation kRun{1};
constexpr Incarnation kNextRun{2};

v1::WorkerSnapshot Say(uint64_t formation, uint64_t good, uint64_t failed = 0,
                       uint64_t group = kGroup.value) {
  v1::WorkerSnapshot snapshot;
  v1::WorkerSnapshot::Tenant& tenant = *snapshot.add_tenants();
  tenant.set_group_id(group);
  tenant.set_formation(formation);
  tenant.set_num_operations(good);
  tenant.set_num_failed(failed);
  tenant.set_num_failed_calls(4 * failed);
  tenant.set_bytes_moved(100 * good);
  return snapshot;
}

TEST(GroupTotalsTest, AddsUpFormationsAlsoWhenTheLastWordOfAnOldOneComesLate) {
  GroupTotals totals;
  totals.Take(kRun, Say(1, 10));
  totals.Take(kRun, Say(1, 12));
  EXPECT_EQ(totals.Of(kGroup).num_operations, 12u);
  v1::WorkerSnapshot both = Say(1, 15, 2);
  both.MergeFrom(Say(2, 1));
  totals.Take(kRun, both);
  EXPECT_EQ(totals.Of(kGroup).num_operations, 16u);
  EXPECT_EQ(totals.Of(kGroup).bytes_moved, 1600u);
  EXPECT_EQ(totals.Of(kGroup).num_failed, 2u);
  EXPECT_EQ(totals.Of(kGroup).num_failed_calls, 8u);
  totals.Take(kRun, Say(2, 3));
  EXPECT_EQ(totals.Of(kGroup).num_operations, 18u);
}

TEST(GroupTotalsTest, KeepsWhatAWorkerThatDiedHadCounted) {
  GroupTotals totals;
  totals.Take(kRun, Say(1, 10, 1));
  totals.AddFailedCalls(kGroup, 3);
  totals.Take(kNextRun, Say(1, 2));
  EXPECT_EQ(totals.Of(kGroup).num_operations, 12u);
  EXPECT_EQ(totals.Of(kGroup).num_failed, 1u);
  EXPECT_EQ(totals.Of(kGroup).num_failed_calls, 7u);
}

TEST(GroupTotalsTest, RoutesThatAreNotToldAreKept) {
  GroupTotals totals;
  v1::WorkerSnapshot snapshot = Say(1, 1);
  snapshot.mutable_tenants(0)->add_expert_routes(5);
  snapshot.mutable_tenants(0)->add_expert_routes(6);
  totals.Take(kRun, snapshot);
  totals.Take(kRun, Say(1, 2));
  EXPECT_THAT(totals.Of(kGroup).expert_routes, ElementsAre(5, 6));
  totals.Take(kNextRun, snapshot);
  EXPECT_THAT(totals.Of(kGroup).expert_routes, ElementsAre(10, 12));
}

TEST(GroupTotalsTest, AGroupThatEndedKeepsItsOwnUntilManyMoreAreTold) {
  GroupTotals totals(/*max_groups=*/2);
  totals.Take(kRun, Say(1, 10, 0, /*group=*/1));
  totals.Take(kRun, Say(1, 20, 0, /*group=*/2));
  EXPECT_EQ(totals.Of(GroupId(1)).num_operations, 10u);
  totals.Take(kRun, Say(1, 30, 0, /*group=*/3));
  EXPECT_EQ(totals.Of(GroupId(1)).num_operations, 0u);
  EXPECT_EQ(totals.Of(GroupId(2)).num_operations, 20u);
  totals.AddFailedCalls(GroupId(9), 1);
  EXPECT_EQ(totals.Of(GroupId(9)).num_failed_calls, 0u) << "a client named it, no worker did";
}

}  // namespace
}  // namespace epd
