// Goal: owners, zones and totals are what their definitions say, also where R does not divide E.
#include "kernels/recv_layout.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/routing_spec.h"
#include "tests/unit/kernels/reference.h"

namespace epd {
namespace {

RoutingSpec Spec(int num_ranks, int num_experts, int alignment) {
  RoutingSpec spec;
  spec.num_ranks = num_ranks;
  spec.num_experts = num_experts;
  spec.top_k = 1;
  spec.alignment = alignment;
  return spec;
}

TEST(RecvLayoutTest, ContiguousOwnersAreBlocksForAllSizes) {
  for (int num_ranks = 1; num_ranks <= 33; ++num_ranks) {
    for (int num_experts = 1; num_experts <= 70; ++num_experts) {
      const RoutingSpec spec = Spec(num_ranks, num_experts, 0);
      const std::vector<std::int32_t> want = reference::ContiguousOwners(num_ranks, num_experts);
      int local = 0;
      for (int e = 0; e < num_experts; ++e) {
        ASSERT_EQ(ExpertOwner(spec, e), want[e]) << "R=" << num_ranks << " E=" << num_experts;
      }
      for (int r = 0; r < num_ranks; ++r) local += NumLocalExperts(spec, r);
      ASSERT_EQ(local, num_experts);
    }
  }
}

TEST(RecvLayoutTest, ZonesStandBackToBackAtTheAlignment) {
  const RoutingSpec spec = Spec(2, 4, 4);
  // Experts 0, 1 on rank 0; 2, 3 on rank 1.
  const std::int32_t counts[] = {1, 0, 3, 4,   // from rank 0
                                 4, 2, 0, 1};  // from rank 1
  EXPECT_EQ(ZoneBegin(spec, counts, 0), 0);
  EXPECT_EQ(ZoneBegin(spec, counts, 1), 8);
  EXPECT_EQ(TotalRecv(spec, counts, 0), 12);
  EXPECT_EQ(ZoneBegin(spec, counts, 2), 0);
  EXPECT_EQ(ZoneBegin(spec, counts, 3), 4);
  EXPECT_EQ(TotalRecv(spec, counts, 1), 12);
  EXPECT_EQ(SourceBegin(spec, counts, 0, 1), 1);
  EXPECT_EQ(SourceBegin(spec, counts, 3, 1), 8);
  EXPECT_EQ(RowsBetween(spec, counts, 0, 1), 7);
  EXPECT_EQ(RowsBetween(spec, counts, 1, 0), 6);
}

TEST(RecvLayoutTest, NoRoutesNoZone) {
  const RoutingSpec spec = Spec(1, 3, 128);
  const std::int32_t counts[] = {0, 1, 0};
  EXPECT_EQ(ZoneSlots(spec, counts, 0), 0);
  EXPECT_EQ(ZoneBegin(spec, counts, 1), 0);
  EXPECT_EQ(ZoneBegin(spec, counts, 2), 128);
  EXPECT_EQ(TotalRecv(spec, counts, 0), 128);
}

TEST(RecvLayoutTest, LocalExpertsOfATableAreInAscendingOrder) {
  const std::int32_t owner[] = {1, 0, 1};
  RoutingSpec spec = Spec(2, 3, 1);
  spec.expert_owner = owner;
  const std::int32_t counts[] = {2, 5, 3, 0, 0, 0};
  EXPECT_EQ(NumLocalExperts(spec, 1), 2);
  EXPECT_EQ(ZoneBegin(spec, counts, 0), 0);
  EXPECT_EQ(ZoneBegin(spec, counts, 2), 2);
  EXPECT_EQ(TotalRecv(spec, counts, 1), 5);
  EXPECT_EQ(TotalRecv(spec, counts, 0), 5);
}

}  // namespace
}  // namespace epd
