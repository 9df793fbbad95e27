// Goal: a node whose control goes on in another program is the same node: nobody who holds on to it hears of the change.
#include "daemon/rpc/handover/node_state_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "tests/unit/daemon/control/small_cluster.h"

namespace epd {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

absl::StatusOr<NodeState> ThroughBytes(const NodeState& state) {
  v1::HandoverControl read;
  if (!read.ParseFromString(ToProto(state).SerializeAsString()))
    return absl::InternalError("the bytes do not parse");
  return FromProto(read);
}

// Node `i` of the cluster, and its coordinator with it, go on in another program.
void Replace(SmallCluster& cluster, size_t i) {
  SmallCluster::OneNode& node = cluster.nodes[i];
  absl::StatusOr<NodeState> state = ThroughBytes(node.control->State());
  ASSERT_TRUE(state.ok()) << state.status();
  auto next = std::make_unique<NodeControl>(node.control->options());
  next->Restore(*std::move(state));
  node.control = std::move(next);
}

// A group of two ranks on two nodes, READY.
class HandoverTest : public testing::Test {
 protected:
  HandoverTest() {
    cluster_.AttachAndJoin(0, 1, SmallSpec(2), {0});
    cluster_.AttachAndJoin(1, 2, SmallSpec(2), {1});
    EXPECT_EQ(cluster_.Group().state, GroupState::kReady);
    before_ = cluster_.Group();
  }

  void ExpectNobodyHasHeard() {
    EXPECT_EQ(cluster_.Group().state, GroupState::kReady);
    EXPECT_EQ(cluster_.Group().epoch, before_.epoch);
    EXPECT_EQ(cluster_.Group().formation, before_.formation);
    EXPECT_EQ(cluster_.Group().id, before_.id);
    for (const uint64_t session : {1, 2}) {
      EXPECT_THAT(cluster_.reforms[session], IsEmpty());
      EXPECT_THAT(cluster_.group_ended[session], IsEmpty());
      EXPECT_THAT(cluster_.joined[session], SizeIs(1));
    }
    for (const SmallCluster::OneNode& node : cluster_.nodes) {
      EXPECT_THAT(node.ended, IsEmpty());
      EXPECT_THAT(node.started, SizeIs(1));
      EXPECT_THAT(node.inits, SizeIs(1));
    }
  }

  SmallCluster cluster_{2};
  GroupStatus before_;
};

TEST_F(HandoverTest, ANodeThatFollowsAnotherOneGoesOn) {
  Replace(cluster_, 1);
  cluster_.Connect(1);
  cluster_.Pass(absl::Seconds(5));
  ExpectNobodyHasHeard();
}

TEST_F(HandoverTest, ANodeThatCoordinatesGoesOnWithItsGroups) {
  Replace(cluster_, 0);
  cluster_.StartCoordinator(/*grace=*/absl::Seconds(2));
  cluster_.Connect(0);
  cluster_.Connect(1);
  cluster_.Pass(absl::Seconds(5));
  ExpectNobodyHasHeard();
}

TEST_F(HandoverTest, AJoinThatWaitsIsAnsweredByTheNextProgram) {
  cluster_.AttachAndJoin(0, 3, SmallSpec(2, "second"), {0});
  Replace(cluster_, 0);
  cluster_.Connect(0);
  cluster_.AttachAndJoin(1, 4, SmallSpec(2, "second"), {1});
  EXPECT_THAT(cluster_.joined[3], SizeIs(1));
  EXPECT_THAT(cluster_.joined[4], SizeIs(1));
  EXPECT_THAT(cluster_.failed[3], IsEmpty());
}

TEST_F(HandoverTest, WhatHappensAfterwardsHappensAsEver) {
  Replace(cluster_, 0);
  cluster_.Connect(0);
  cluster_.KillWorker(0);
  ASSERT_THAT(cluster_.reforms[1], SizeIs(1));
  cluster_.StartWorker(0);
  cluster_.Drained(0, 1);
  cluster_.Drained(1, 2);
  EXPECT_EQ(cluster_.Group().state, GroupState::kReady);
  EXPECT_GT(cluster_.Group().epoch, before_.epoch);
  EXPECT_THAT(cluster_.joined[1], SizeIs(2));
  cluster_.Gone(0, 1);
  EXPECT_EQ(cluster_.Group().state, GroupState::kDegraded);
}

TEST_F(HandoverTest, TheStateIsTheSameAfterEachWay) {
  cluster_.AttachAndJoin(0, 3, SmallSpec(2, "second"), {0});
  cluster_.KillWorker(0);
  const v1::HandoverControl first = ToProto(cluster_.nodes[0].control->State());
  v1::HandoverControl second = ToProto(*FromProto(first));
  // The codec of reports writes the time.
  second.mutable_report()->mutable_facts()->set_wall_clock_ms(
      first.report().facts().wall_clock_ms());
  EXPECT_EQ(first.SerializeAsString(), second.SerializeAsString());
  EXPECT_GE(first.groups_size(), 1);
  EXPECT_EQ(first.memberships_size(), 2);
}

TEST_F(HandoverTest, AnotherMinorVersionsFieldsAreLeftOut) {
  v1::HandoverControl later = ToProto(cluster_.nodes[0].control->State());
  later.GetReflection()->MutableUnknownFields(&later)->AddVarint(1000, 7);
  later.mutable_groups(0)
      ->GetReflection()
      ->MutableUnknownFields(later.mutable_groups(0))
      ->AddVarint(1001, 8);
  v1::HandoverControl read;
  ASSERT_TRUE(read.ParseFromString(later.SerializeAsString()));
  ASSERT_TRUE(FromProto(read).ok());
  EXPECT_THAT(FromProto(read)->groups, SizeIs(1));
}

TEST_F(HandoverTest, WhatIsMissingIsNamed) {
  v1::HandoverControl cut = ToProto(cluster_.nodes[0].control->State());
  cut.mutable_memberships()->RemoveLast();
  EXPECT_EQ(FromProto(cut).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(FromProto(cut).status().message(), HasSubstr("memberships: got 0, expected 1"));
  v1::HandoverControl worse = ToProto(cluster_.nodes[0].control->State());
  worse.mutable_report()->mutable_work()->RemoveLast();
  EXPECT_THAT(FromProto(worse).status().message(), HasSubstr("report.work"));
  v1::HandoverControl odd = ToProto(cluster_.nodes[0].control->State());
  odd.mutable_memberships(0)->set_state(99);
  EXPECT_EQ(FromProto(odd).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(FromProto(odd).status().message(), HasSubstr("membership.state: got 99"));
}

}  // namespace
}  // namespace epd
