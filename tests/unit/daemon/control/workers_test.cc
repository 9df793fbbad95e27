// Goal: what happens to one worker of a node is heard by the groups that it serves, and by no other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/daemon/control/small_cluster.h"

namespace epd {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr WorkerName kGpu = SmallCluster::kGpuWorker;

GroupSpec GpuSpec(uint32_t num_ranks = 1) {
  GroupSpec spec = SmallSpec(num_ranks, "gpu");
  spec.backend = "cuda";
  return spec;
}

// Session 1 in a group of the CPU's worker, session 2 in one of the GPU's, on one node.
struct TwoGroups : SmallCluster {
  TwoGroups() : SmallCluster(1) {
    AttachAndJoin(0, 1, SmallSpec(1, "cpu"), {0});
    AttachAndJoin(0, 2, GpuSpec(), {0});
  }
  GroupStatus Of(const std::string& name) const {
    for (const GroupStatus& group : coordinator->Groups()) {
      if (group.spec.name == name) return group;
    }
    return {};
  }
};

struct Death {
  WorkerName name;
  std::string hit;  // The group that hears of it.
  std::string other;
};

class WorkerDeath : public testing::TestWithParam<Death> {};
INSTANTIATE_TEST_SUITE_P(Both, WorkerDeath,
                         testing::Values(Death{kCpuWorker, "cpu", "gpu"},
                                         Death{kGpu, "gpu", "cpu"}),
                         [](const auto& info) { return info.param.hit; });

TEST_P(WorkerDeath, EndsTheEpochOfItsGroupsAndOfNoOther) {
  const Death& death = GetParam();
  TwoGroups c;
  ASSERT_EQ(c.Of("cpu").state, GroupState::kReady);
  ASSERT_EQ(c.Of("gpu").state, GroupState::kReady);
  const GroupStatus before = c.Of(death.other);
  const uint64_t session = death.hit == "cpu" ? 1 : 2;
  const uint64_t spared = 3 - session;
  c.KillWorker(0, death.name);
  EXPECT_EQ(c.Of(death.hit).state, GroupState::kReforming);
  ASSERT_THAT(c.reforms[session], SizeIs(1));
  EXPECT_TRUE(c.reforms[session][0].wait);
  EXPECT_THAT(c.reforms[session][0].cause.ToString(),
              AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("group=" + death.hit),
                    HasSubstr("the worker of " + ToString(WorkerId{NodeId{"n0"}, death.name}) +
                              " host=host0, which serves rank"),
                    HasSubstr("is gone")));
  c.Drained(0, session);
  EXPECT_EQ(c.Of(death.hit).state, GroupState::kReforming) << "its worker is not back";
  c.StartWorker(0, death.name);
  EXPECT_EQ(c.Of(death.hit).state, GroupState::kReady);
  EXPECT_GT(c.joined[session].back().epoch, c.joined[session].front().epoch);
  EXPECT_EQ(c.Of(death.other).state, GroupState::kReady);
  EXPECT_EQ(c.Of(death.other).epoch, before.epoch);
  EXPECT_EQ(c.Of(death.other).formation, before.formation);
  EXPECT_THAT(c.reforms[spared], IsEmpty());
  EXPECT_THAT(c.joined[spared], SizeIs(1));
}

TEST(WorkersTest, WhatIsForAGroupGoesToItsWorker) {
  TwoGroups c;
  ASSERT_THAT(c.nodes[0].started, SizeIs(2));
  EXPECT_EQ(c.nodes[0].started[0].to, kCpuWorker);
  EXPECT_EQ(c.nodes[0].started[1].to, kGpu);
  EXPECT_EQ(c.nodes[0].inits[0].to, kCpuWorker);
  EXPECT_EQ(c.nodes[0].inits[1].to, kGpu);
  EXPECT_THAT(c.joined[1][0].workers, ElementsAre(kCpuWorker));
  EXPECT_THAT(c.joined[2][0].workers, ElementsAre(kGpu));
  c.Gone(0, 2);
  ASSERT_THAT(c.nodes[0].ended, SizeIs(1));
  EXPECT_EQ(c.nodes[0].ended[0].to, kGpu);
}

TEST(WorkersTest, AnAnswerOfAnotherWorkerCountsForNothing) {
  SmallCluster c(1);
  c.nodes[0].worker_answers = false;
  c.AttachAndJoin(0, 2, GpuSpec(), {0});
  const StartTenant start = c.nodes[0].started.at(0);
  c.Give(0, TenantReady{c.nodes[0].worker, start.group, start.formation});
  EXPECT_EQ(c.Group().state, GroupState::kBootstrapping);
  c.Give(0, TenantReady{c.nodes[0].gpu_worker, start.group, start.formation});
  EXPECT_EQ(c.Group().state, GroupState::kReady);
}

TEST(WorkersTest, AGroupWaitsForItsOwnWorkerOnly) {
  SmallCluster c(1);
  c.KillWorker(0, kGpu);
  c.AttachAndJoin(0, 1, SmallSpec(1, "cpu"), {0});
  EXPECT_THAT(c.joined[1], SizeIs(1));
  c.AttachAndJoin(0, 2, GpuSpec(), {0});
  EXPECT_THAT(c.joined[2], IsEmpty());
  c.StartWorker(0, kGpu);
  EXPECT_THAT(c.joined[2], SizeIs(1));
}

TEST(WorkersTest, AJoinForAWorkerThatIsNotThereIsRefusedByName) {
  SmallCluster c(1);
  c.Attach(0, 1);
  c.Give(0, JoinRequested{SessionId{1},
                          RequestId{1},
                          GpuSpec(),
                          {Rank{0}},
                          Epoch{},
                          c.now + absl::Minutes(1),
                          GroupId{77},
                          {WorkerName{5}}});
  ASSERT_THAT(c.failed[1], SizeIs(1));
  EXPECT_THAT(c.failed[1][0].ToString(),
              AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("group=gpu"),
                    HasSubstr("no worker cuda:5")));
}

// A GPU's worker may start with the first Join for it: before it is up nobody knows what it has.
TEST(WorkersTest, NodesAreComparedOnceTheirWorkersAreUp) {
  NodeFacts facts;
  facts.nccl_version = "2.30";
  SmallCluster c(2, {facts, facts});
  constexpr WorkerName kLate{5};
  c.AttachAndJoin(0, 1, GpuSpec(2), {0});
  c.Give(1, WorkerAdded{kLate});
  c.Attach(1, 2);
  c.Give(1, JoinRequested{SessionId{2},
                          RequestId{1},
                          GpuSpec(2),
                          {Rank{1}},
                          Epoch{},
                          c.now + absl::Minutes(1),
                          GroupId{77},
                          {kLate}});
  EXPECT_THAT(c.failed[1], IsEmpty());
  EXPECT_THAT(c.joined[1], IsEmpty());
  c.StartWorker(1, kLate);
  EXPECT_THAT(c.joined[1], SizeIs(1));
  EXPECT_THAT(c.joined[2], SizeIs(1));
}

TEST(WorkersTest, ATenantOfAGroupThatAnotherWorkerServesIsRefusedAndTheOtherGoesOn) {
  TwoGroups c;
  GroupSpec tenant = GpuSpec();
  tenant.tenant = "b";
  c.Attach(0, 3);
  c.JoinAt(0, 3, 1, tenant, {0}, {SmallCluster::kOtherGpuWorker});
  ASSERT_THAT(c.failed[3], SizeIs(1));
  EXPECT_THAT(c.failed[3][0].ToString(),
              AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("rank 0 is on node n0 cuda:1"),
                    HasSubstr("expected node n0 cuda:0")));
  EXPECT_EQ(c.Of("gpu").formation, Formation{1});
  EXPECT_THAT(c.reforms[2], IsEmpty());
}

// A coordinator that takes the node over must still know which worker serves what.
TEST(WorkersTest, ANewCoordinatorTakesGroupsOfBothWorkersOverAsTheyAre) {
  TwoGroups c;
  c.StartCoordinator(absl::Seconds(2));
  c.Connect(0);
  c.Pass(absl::Seconds(3));
  EXPECT_EQ(c.Of("cpu").state, GroupState::kReady);
  EXPECT_EQ(c.Of("gpu").state, GroupState::kReady);
  c.KillWorker(0, kGpu);
  EXPECT_EQ(c.Of("cpu").state, GroupState::kReady);
  EXPECT_EQ(c.Of("gpu").state, GroupState::kReforming);
  EXPECT_THAT(c.reforms[1], IsEmpty());
}

}  // namespace
}  // namespace epd
