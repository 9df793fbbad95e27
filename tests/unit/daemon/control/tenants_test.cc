// Goal: tenants of one group share its epoch and communicator and nothing else: what happens to one
// leaves the others as they are, but for the loss of a worker, which concerns all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/daemon/control/small_cluster.h"

namespace epd {
namespace {

using testing::HasSubstr;

GroupSpec SpecOfTenant(const std::string& tenant, uint32_t num_ranks = 2) {
  GroupSpec spec = SmallSpec(num_ranks);
  spec.tenant = tenant;
  spec.instance = "run-of-" + tenant;  // A nonce of each job.
  return spec;
}

GroupStatus StatusOf(const SmallCluster& c, const std::string& tenant) {
  for (const GroupStatus& group : c.coordinator->Groups()) {
    if (group.spec.tenant == tenant) return group;
  }
  return {};
}

// Sessions 1 and 2 are tenant a, 3 and 4 are tenant b; rank r is on node r % num_nodes.
void FormTwo(SmallCluster& c) {
  const size_t second = c.nodes.size() - 1;
  c.AttachAndJoin(0, 1, SpecOfTenant("a"), {0});
  c.AttachAndJoin(0, 3, SpecOfTenant("b"), {0});
  c.AttachAndJoin(second, 2, SpecOfTenant("a"), {1});
  c.AttachAndJoin(second, 4, SpecOfTenant("b"), {1});
  for (const uint64_t session : {1, 2, 3, 4}) ASSERT_EQ(c.joined[session].size(), 1u) << session;
}

TEST(TenantsTest, ShareEpochAndCommunicatorAndNoSession) {
  SmallCluster c(2);
  FormTwo(c);
  const GroupStatus a = StatusOf(c, "a");
  const GroupStatus b = StatusOf(c, "b");
  EXPECT_EQ(a.state, GroupState::kReady);
  EXPECT_EQ(b.state, GroupState::kReady);
  EXPECT_NE(a.id, b.id);
  EXPECT_EQ(a.communicator, b.communicator);
  EXPECT_EQ(a.epoch, b.epoch);
  EXPECT_EQ(a.id_digest, b.id_digest);
  for (const SmallCluster::OneNode& node : c.nodes) {
    EXPECT_EQ(node.inits.size(), 1u) << "one communicator is initialised once";
    EXPECT_EQ(node.started.size(), 2u);
  }
  for (const RankHolder& member : c.joined[1][0].members) EXPECT_LE(member.session.value, 2u);
  for (const RankHolder& member : c.joined[3][0].members) EXPECT_GE(member.session.value, 3u);
}

TEST(TenantsTest, ADeathInOneLeavesTheOtherAsItIs) {
  SmallCluster c(2);
  FormTwo(c);
  const Formation before = StatusOf(c, "b").formation;
  c.Gone(0, 1);
  EXPECT_EQ(StatusOf(c, "a").state, GroupState::kDegraded);
  EXPECT_EQ(StatusOf(c, "b").state, GroupState::kReady);
  EXPECT_EQ(StatusOf(c, "b").formation, before);
  EXPECT_TRUE(c.reforms[3].empty());
  EXPECT_TRUE(c.reforms[4].empty());
  for (const SmallCluster::OneNode& node : c.nodes) {
    for (const EndTenant& ended : node.ended) EXPECT_NE(ended.group, StatusOf(c, "b").id);
  }
  // A replacement forms a again, in the same epoch, and b does not notice.
  c.Drained(1, 2);
  c.AttachAndJoin(0, 5, SpecOfTenant("a"), {0});
  EXPECT_EQ(StatusOf(c, "a").state, GroupState::kReady);
  EXPECT_EQ(StatusOf(c, "a").epoch, StatusOf(c, "b").epoch);
  EXPECT_EQ(c.joined[3].size(), 1u);
}

TEST(TenantsTest, TheLastOneToLeaveTakesTheCommunicatorAway) {
  SmallCluster c(1);
  FormTwo(c);
  const GroupStatus first = StatusOf(c, "b");
  c.Gone(0, 1);
  c.Gone(0, 2);
  EXPECT_EQ(c.coordinator->Groups().size(), 1u);
  c.AttachAndJoin(0, 5, SpecOfTenant("a"), {0, 1});
  EXPECT_EQ(StatusOf(c, "a").communicator, first.communicator);
  EXPECT_EQ(StatusOf(c, "a").epoch, first.epoch);
  for (const uint64_t session : {3, 4, 5}) c.Gone(0, session);
  EXPECT_TRUE(c.coordinator->Groups().empty());
  c.AttachAndJoin(0, 6, SpecOfTenant("a"), {0, 1});
  EXPECT_NE(StatusOf(c, "a").communicator, first.communicator);
  EXPECT_GT(StatusOf(c, "a").epoch, first.epoch);
}

// The nodes forget a communicator that none of their tenants is in.
TEST(TenantsTest, OneThatFormsWhileTheOnlyOtherEndsBeginsAnEpochOfItsOwn) {
  for (const size_t num_nodes : {1, 2}) {
    SmallCluster c(num_nodes);
    c.AttachAndJoin(0, 1, SpecOfTenant("a"), {0});
    c.AttachAndJoin(num_nodes - 1, 2, SpecOfTenant("a"), {1});
    const GroupStatus a = StatusOf(c, "a");
    ASSERT_EQ(a.state, GroupState::kReady);
    c.AttachAndJoin(0, 3, SpecOfTenant("b"), {0});
    c.Gone(0, 1);
    c.Gone(num_nodes - 1, 2);
    ASSERT_EQ(c.coordinator->Groups().size(), 1u);
    c.AttachAndJoin(num_nodes - 1, 4, SpecOfTenant("b"), {1});
    EXPECT_EQ(StatusOf(c, "b").state, GroupState::kReady) << num_nodes << " nodes";
    EXPECT_GT(StatusOf(c, "b").epoch, a.epoch);
    EXPECT_EQ(c.joined[3].size(), 1u);
    EXPECT_EQ(c.joined[4].size(), 1u);
  }
}

TEST(TenantsTest, ALostWorkerBeginsOneNewEpochForAll) {
  SmallCluster c(2);
  FormTwo(c);
  const Epoch before = StatusOf(c, "a").epoch;
  c.KillWorker(1);
  for (const uint64_t session : {1, 2, 3, 4}) EXPECT_EQ(c.reforms[session].size(), 1u) << session;
  c.StartWorker(1);
  c.Drained(0, 1);
  c.Drained(1, 2);
  c.Drained(0, 3);
  c.Drained(1, 4);
  for (const std::string tenant : {"a", "b"}) {
    EXPECT_EQ(StatusOf(c, tenant).state, GroupState::kReady) << tenant;
    EXPECT_EQ(StatusOf(c, tenant).epoch.value, before.value + 1) << tenant;
  }
  EXPECT_EQ(c.nodes[0].inits.size(), 2u) << "the new communicator, too, is initialised once";
}

TEST(TenantsTest, AnotherSpecIsRefusedAndHarmsNobody) {
  SmallCluster c(1);
  FormTwo(c);
  GroupSpec other = SpecOfTenant("c");
  other.hidden = 99;
  c.AttachAndJoin(0, 5, other, {0});
  ASSERT_EQ(c.failed[5].size(), 1u);
  EXPECT_EQ(c.failed[5][0].code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(c.failed[5][0].message()),
              testing::AllOf(HasSubstr("group=moe tenant=c"), HasSubstr("hidden: got 99"),
                             HasSubstr("tenant \"a\"")));
  EXPECT_EQ(StatusOf(c, "a").state, GroupState::kReady);
  EXPECT_EQ(StatusOf(c, "b").state, GroupState::kReady);
}

TEST(TenantsTest, ARankOnAnotherNodeIsRefusedAndHarmsNobody) {
  SmallCluster c(2);
  FormTwo(c);
  c.AttachAndJoin(1, 5, SpecOfTenant("c"), {0});
  c.AttachAndJoin(0, 6, SpecOfTenant("c"), {1});
  ASSERT_EQ(c.failed[5].size(), 1u);
  EXPECT_THAT(std::string(c.failed[5][0].message()),
              testing::AllOf(HasSubstr("rank 0 is on node n1"), HasSubstr("expected node n0")));
  EXPECT_EQ(StatusOf(c, "a").state, GroupState::kReady);
  EXPECT_EQ(StatusOf(c, "b").state, GroupState::kReady);
}

TEST(TenantsTest, AMismatchWhileOneFormsFailsThatOneOnly) {
  SmallCluster c(1);
  c.AttachAndJoin(0, 1, SpecOfTenant("a"), {0});
  c.AttachAndJoin(0, 3, SpecOfTenant("b"), {0});
  GroupSpec odd = SpecOfTenant("b");
  odd.hidden = 99;
  c.AttachAndJoin(0, 4, odd, {1});
  EXPECT_EQ(c.failed[3].size(), 1u);
  EXPECT_EQ(c.failed[4].size(), 1u);
  EXPECT_TRUE(c.failed[1].empty());
  c.AttachAndJoin(0, 2, SpecOfTenant("a"), {1});
  EXPECT_EQ(c.joined[1].size(), 1u);
}

TEST(TenantsTest, EachHasItsOwnInstance) {
  SmallCluster c(1);
  FormTwo(c);
  GroupSpec again = SpecOfTenant("a");
  again.instance = "second-run";  // Waits for the first run of a, whatever b does.
  c.AttachAndJoin(0, 5, again, {0});
  c.AttachAndJoin(0, 6, again, {1});
  EXPECT_TRUE(c.joined[5].empty());
  c.Gone(0, 1);
  c.Gone(0, 2);
  EXPECT_EQ(c.joined[5].size(), 1u);
  EXPECT_EQ(c.joined[6].size(), 1u);
  EXPECT_TRUE(c.reforms[3].empty());
}

TEST(TenantsTest, ADrainByNameTakesAllAndAnswersOnce) {
  SmallCluster c(1);
  FormTwo(c);
  c.Give(0, OrderRequested{{.request = RequestId{77}, .kind = OrderKind::kDrain, .name = "moe"},
                           c.now + absl::Seconds(30)});
  EXPECT_TRUE(c.coordinator->Groups().empty());
  EXPECT_EQ(c.nodes[0].num_drains, 2);
  ASSERT_EQ(c.rpcs[77].size(), 1u);
  EXPECT_TRUE(c.rpcs[77][0].status.ok());
}

TEST(TenantsTest, ADrainByIdLeavesTheOther) {
  SmallCluster c(1);
  FormTwo(c);
  c.Give(0, OrderRequested{
                {.request = RequestId{77}, .kind = OrderKind::kDrain, .group = StatusOf(c, "a").id},
                c.now + absl::Seconds(30)});
  ASSERT_EQ(c.rpcs[77].size(), 1u);
  EXPECT_EQ(StatusOf(c, "b").state, GroupState::kReady);
  EXPECT_EQ(c.coordinator->Groups().size(), 1u);
}

}  // namespace
}  // namespace epd
