// Goal: an operator hears of an order once it is done with every tenant that it names, and of what
// went wrong with any of them.
#include "daemon/control/rendezvous/operator_orders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace epd {
namespace {

using testing::IsEmpty;

const NodeId kNode{"n"};
constexpr RequestId kRequest{7};

class OperatorOrdersTest : public testing::Test {
 protected:
  OperatorOrdersTest() { changes_.Begin(absl::UnixEpoch()); }

  GroupId CreateReady(const std::string& tenant) {
    GroupSpec spec;
    spec.name = "moe";
    spec.tenant = tenant;
    ClusterGroup& group = groups_.Create(groups_.FreshId(GroupId{1}), spec, /*orchestrated=*/false);
    groups_.Fire(group, GroupEvent::kComplete, absl::OkStatus());
    groups_.Fire(group, GroupEvent::kServing, absl::OkStatus());
    return group.id;
  }

  void Order(OrderKind kind, OperatorOrders& orders) {
    NodeReport report;
    report.node = kNode;
    epd::Order& order = report.orders.emplace_back();
    order.request = kRequest;
    order.kind = kind;
    order.name = "moe";
    order.spec.name = "moe";
    order.proposed = GroupId{5};
    order.remaining = absl::Seconds(9);
    orders.Take(report);
  }

  Changes changes_;
  EpochFloors floors_{Epoch{}};
  NodeTable nodes_{Incarnation{1}, absl::Seconds(10)};
  ClaimTable claims_{changes_};
  GroupTable groups_{Incarnation{1}, changes_, claims_, floors_};
  FormationReports reports_{changes_, nodes_, claims_, groups_};
};

TEST_F(OperatorOrdersTest, ADrainIsDoneWithTheLastTenantAndKeepsTheFirstError) {
  OperatorOrders orders(/*keeps=*/false, {}, changes_, groups_, reports_);
  const GroupId a = CreateReady("a"), b = CreateReady("b");
  Order(OrderKind::kDrain, orders);
  EXPECT_EQ(groups_.At(a).state, GroupState::kDraining);
  EXPECT_EQ(groups_.At(b).deadline, absl::UnixEpoch() + absl::Seconds(9));
  orders.TakeEnded({a, absl::DeadlineExceededError("cut off")});
  EXPECT_THAT(orders.Answers(kNode), IsEmpty());
  orders.TakeEnded({b, absl::OkStatus()});
  ASSERT_EQ(orders.Answers(kNode).size(), 1u);
  EXPECT_EQ(orders.Answers(kNode)[0].request, kRequest);
  EXPECT_TRUE(absl::IsDeadlineExceeded(orders.Answers(kNode)[0].status));
}

TEST_F(OperatorOrdersTest, WhatIsMadeIsAnsweredOnceItIsKeptOrItsDeadlineHasPassed) {
  OperatorOrders orders(/*keeps=*/true, {}, changes_, groups_, reports_);
  Order(OrderKind::kCreate, orders);
  const GroupId made = groups_.ByName("moe", "")->id;
  EXPECT_THAT(orders.Answers(kNode), IsEmpty());
  orders.SetKept({{made, {}}});
  ASSERT_EQ(orders.Answers(kNode).size(), 1u);
  EXPECT_TRUE(orders.Answers(kNode)[0].status.ok());
  orders.SetKept({});
  EXPECT_THAT(orders.Answers(kNode), IsEmpty());
  EXPECT_EQ(orders.Earliest(), absl::UnixEpoch() + absl::Seconds(9));
  changes_.Begin(orders.Earliest());
  orders.Expire();
  ASSERT_EQ(orders.Answers(kNode).size(), 1u);
  EXPECT_TRUE(absl::IsUnavailable(orders.Answers(kNode)[0].status));
}

TEST_F(OperatorOrdersTest, AStoreThatRefusesIsNamedAtOnce) {
  OperatorOrders orders(/*keeps=*/true, {}, changes_, groups_, reports_);
  Order(OrderKind::kCreate, orders);
  orders.RefuseToKeep(absl::ResourceExhaustedError("database space exceeded"));
  ASSERT_EQ(orders.Answers(kNode).size(), 1u);
  const absl::Status said = orders.Answers(kNode)[0].status;
  EXPECT_TRUE(absl::IsUnavailable(said));
  EXPECT_THAT(std::string(said.message()),
              testing::HasSubstr("problem is: database space exceeded"));
}

}  // namespace
}  // namespace epd
