// Goal: ranks of one group may be served by several GPUs' workers of one node; each of them is a member of
// the formation, and the formation stands and falls with all of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/daemon/control/small_cluster.h"

namespace epd {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

constexpr WorkerName kFirst = SmallCluster::kGpuWorker;
constexpr WorkerName kSecond = SmallCluster::kOtherGpuWorker;

GroupSpec GpuSpec(uint32_t num_ranks, const std::string& name = "gpu") {
  GroupSpec spec = SmallSpec(num_ranks, name);
  spec.backend = "cuda";
  return spec;
}

// Session r + 1 has rank r, at cuda:0 and cuda:1 of one node in turns.
struct OneGroup : SmallCluster {
  explicit OneGroup(uint32_t num_ranks = 2) : SmallCluster(1) {
    for (uint32_t rank = 0; rank < num_ranks; ++rank) {
      Attach(0, rank + 1);
      JoinAt(0, rank + 1, 1, GpuSpec(num_ranks), {rank}, {rank % 2 == 0 ? kFirst : kSecond});
    }
  }
};

TEST(MembersTest, EachWorkerOfTheNodeIsToldOfTheFormationWithEveryRanksWorker) {
  OneGroup c(4);
  ASSERT_EQ(c.Group().state, GroupState::kReady);
  EXPECT_THAT(c.nodes[0].started,
              ElementsAre(Field(&StartTenant::to, kFirst), Field(&StartTenant::to, kSecond)));
  EXPECT_THAT(c.nodes[0].inits, ElementsAre(Field(&InitCommunicator::to, kFirst),
                                            Field(&InitCommunicator::to, kSecond)));
  for (const StartTenant& start : c.nodes[0].started) {
    ASSERT_EQ(start.members.size(), 4u);
    for (const RankHolder& member : start.members)
      EXPECT_EQ(member.worker, member.rank.value % 2 == 0 ? kFirst : kSecond);
    ASSERT_EQ(start.workers.size(), 2u);
    EXPECT_EQ(start.workers.items()[0].name, kFirst);
    EXPECT_EQ(start.workers.items()[0].worker, c.nodes[0].gpu_worker);
    EXPECT_EQ(start.workers.items()[1].name, kSecond);
    EXPECT_EQ(start.workers.items()[1].worker, c.nodes[0].other_gpu_worker);
  }
}

TEST(MembersTest, OneSessionMayHaveRanksAtSeveralWorkers) {
  SmallCluster c(1);
  c.Attach(0, 1);
  c.JoinAt(0, 1, 1, GpuSpec(3), {2, 0, 1}, {kSecond, kFirst, kSecond});
  ASSERT_THAT(c.joined[1], SizeIs(1));
  ASSERT_EQ(c.joined[1][0].members.size(), 3u);
  for (const RankHolder& member : c.joined[1][0].members)
    EXPECT_EQ(member.worker, member.rank == Rank{0} ? kFirst : kSecond);
  EXPECT_THAT(c.nodes[0].started, SizeIs(2));
}

TEST(MembersTest, TheIdIsMadeByTheWorkerOfRankZeroAndStaysOnTheNode) {
  SmallCluster c(1);
  // Not even a link on which ids may not travel is in its way.
  c.Perform(c.coordinator->ConnectNode(c.now, NodeId{"n0"}, c.nodes[0].incarnation,
                                       {"unique ids do not travel unencrypted"}));
  c.Attach(0, 1);
  c.JoinAt(0, 1, 1, GpuSpec(2), {1, 0}, {kFirst, kSecond});
  ASSERT_EQ(c.Group().state, GroupState::kReady);
  EXPECT_THAT(c.nodes[0].id_makers, ElementsAre(kSecond));
  ASSERT_THAT(c.nodes[0].inits, SizeIs(2));
  EXPECT_FALSE(c.nodes[0].inits[0].id.empty());
  EXPECT_TRUE(c.nodes[0].inits[0].id == c.nodes[0].inits[1].id);
  EXPECT_FALSE(c.an_id_was_reported);
}

TEST(MembersTest, AGroupOfSeveralNodesAndWorkersHasOneIdThatTravels) {
  SmallCluster c(2);
  for (uint32_t rank = 0; rank < 4; ++rank) {
    c.Attach(rank / 2, rank + 1);
    c.JoinAt(rank / 2, rank + 1, 1, GpuSpec(4), {rank}, {rank % 2 == 0 ? kFirst : kSecond});
  }
  ASSERT_EQ(c.Group().state, GroupState::kReady);
  std::set<std::string> ids;
  for (const auto& node : c.nodes) {
    EXPECT_THAT(node.started, SizeIs(2));
    for (const InitCommunicator& init : node.inits) ids.insert(init.id.bytes());
  }
  EXPECT_THAT(ids, SizeIs(1));
  EXPECT_TRUE(c.an_id_was_reported);
}

TEST(MembersTest, AReplayedIdThatStaysIsRefusedByTheNode) {
  OneGroup c;
  c.replayed_id = c.nodes[0].inits[0].id.bytes();
  c.KillWorker(0, kSecond);
  for (const uint64_t session : {1, 2}) c.Drained(0, session);
  c.StartWorker(0, kSecond);
  EXPECT_THAT(c.nodes[0].inits, SizeIs(2)) << "a worker was given the id of an earlier epoch";
  ASSERT_THAT(c.group_ended[1], SizeIs(1));
  EXPECT_THAT(c.group_ended[1][0].ToString(), HasSubstr("a unique id that it has used before"));
}

// None of the workers finds NCCL.
void TakeNcclAway(SmallCluster& c) {
  for (size_t i = 0; i < c.nodes.size(); ++i) {
    c.nodes[i].has_nccl = false;
    for (const WorkerName worker : {kFirst, kSecond}) {
      c.KillWorker(i, worker);
      c.StartWorker(i, worker);
    }
  }
}

TEST(MembersTest, AGroupOnGpusOfOneNodeNeedsNoNccl) {
  SmallCluster c(1);
  TakeNcclAway(c);
  c.AttachAndJoin(0, 1, GpuSpec(1, "one"), {0});
  EXPECT_EQ(c.Group().state, GroupState::kReady);
  c.Attach(0, 2);
  c.JoinAt(0, 2, 1, GpuSpec(2), {0, 1}, {kFirst, kSecond});
  ASSERT_THAT(c.joined[2], SizeIs(1)) << "whether its GPUs can do without, its workers find out";
  const InitCommunicator& init = c.nodes[0].inits.back();
  EXPECT_TRUE(init.id.empty());
  EXPECT_EQ(init.no_id_reason, "none: node n0 cuda:0: no libnccl.so.2");
}

TEST(MembersTest, WorkersOfOneNodeMayHaveDifferentNcclsAndThenShareNoId) {
  SmallCluster c(1);
  c.nodes[0].nccl_version = "2.28.3";
  c.KillWorker(0, kSecond);
  c.StartWorker(0, kSecond);
  c.Attach(0, 1);
  c.JoinAt(0, 1, 1, GpuSpec(2), {0, 1}, {kFirst, kSecond});
  ASSERT_THAT(c.joined[1], SizeIs(1));
  for (const InitCommunicator& init : c.nodes[0].inits) {
    EXPECT_TRUE(init.id.empty());
    EXPECT_THAT(init.no_id_reason, HasSubstr("NCCL differs"));
  }
}

// As where NCCL finds no network.
TEST(MembersTest, AnIdThatCannotBeMadeIsMissedBetweenNodesOnly) {
  SmallCluster c(2);
  c.id_status = absl::UnavailableError("no interface");
  for (uint32_t rank = 0; rank < 2; ++rank) {
    c.Attach(0, rank + 1);
    c.JoinAt(0, rank + 1, 1, GpuSpec(2), {rank}, {rank == 0 ? kFirst : kSecond});
    c.Attach(rank, rank + 3);
    c.JoinAt(rank, rank + 3, 1, GpuSpec(2, "far"), {rank}, {kFirst});
  }
  for (const uint64_t session : {1, 2}) EXPECT_THAT(c.joined[session], SizeIs(1));
  for (const uint64_t session : {3, 4}) {
    ASSERT_THAT(c.failed[session], SizeIs(1));
    EXPECT_THAT(c.failed[session][0].ToString(), HasSubstr("making the unique id: no interface"));
  }
}

TEST(MembersTest, ALibraryThatMovesTheRowsNeedsNcclOnOneNodeToo) {
  SmallCluster c(1);
  TakeNcclAway(c);
  GroupSpec spec = GpuSpec(2);
  spec.backend = "nccl_ep";
  c.Attach(0, 1);
  c.JoinAt(0, 1, 1, spec, {0, 1}, {kFirst, kSecond});
  ASSERT_THAT(c.failed[1], SizeIs(1));
  EXPECT_THAT(c.failed[1][0].ToString(), HasSubstr("backend nccl_ep needs NCCL"));
}

// What could not form without NCCL, since its GPUs cannot read each other's memory, is tried anew in a new epoch.
TEST(MembersTest, AGroupThatItsWorkersRefusedFormsInANewEpoch) {
  SmallCluster c(1);
  TakeNcclAway(c);
  c.Give(0, OrderRequested{{.request = RequestId{9},
                            .kind = OrderKind::kCreate,
                            .spec = GpuSpec(2),
                            .proposed = GroupId{500}},
                           c.now + absl::Minutes(1)});
  c.silent = {kFirst, kSecond};
  c.Attach(0, 1);
  c.JoinAt(0, 1, 1, GpuSpec(2), {0, 1}, {kFirst, kSecond});
  const StartTenant start = c.nodes[0].started.at(0);
  c.Give(0, TenantFailed{c.nodes[0].gpu_worker, start.group, start.formation,
                         absl::FailedPreconditionError("neither directly nor by NCCL")});
  ASSERT_THAT(c.failed[1], SizeIs(1));
  EXPECT_THAT(c.failed[1][0].ToString(),
              HasSubstr("node n0 cuda:0 cannot serve it: neither directly nor by NCCL; unique id: "
                        "none: node n0 cuda:0: no libnccl.so.2"));
  c.silent = {};
  c.Attach(0, 2);
  c.JoinAt(0, 2, 1, GpuSpec(2), {0, 1}, {kFirst, kSecond});
  ASSERT_THAT(c.joined[2], SizeIs(1));
  EXPECT_GT(c.nodes[0].started.back().epoch, start.epoch);
}

TEST(MembersTest, TheDeathOfOneWorkerEndsTheEpochOnAllAndTheGroupFormsAgainWhenItIsBack) {
  for (const WorkerName dead : {kFirst, kSecond}) {
    OneGroup c;
    const WorkerName other = dead == kFirst ? kSecond : kFirst;
    const GroupStatus before = c.Group();
    ASSERT_EQ(before.state, GroupState::kReady);
    c.KillWorker(0, dead);
    EXPECT_EQ(c.Group().state, GroupState::kReforming);
    ASSERT_THAT(c.nodes[0].ended, SizeIs(1)) << "the other one cannot go on";
    EXPECT_EQ(c.nodes[0].ended[0].to, other);
    for (const uint64_t session : {1, 2}) {
      ASSERT_THAT(c.reforms[session], SizeIs(1));
      EXPECT_TRUE(c.reforms[session][0].wait);
      EXPECT_THAT(c.reforms[session][0].cause.ToString(),
                  AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("group=gpu"),
                        HasSubstr("the worker of " + ToString(WorkerId{NodeId{"n0"}, dead}) +
                                  " host=host0, which serves rank"),
                        HasSubstr("is gone")));
      c.Drained(0, session);
    }
    EXPECT_EQ(c.Group().state, GroupState::kReforming) << "its worker is not back";
    c.StartWorker(0, dead);
    EXPECT_EQ(c.Group().state, GroupState::kReady);
    EXPECT_GT(c.Group().epoch, before.epoch);
    EXPECT_THAT(c.nodes[0].started, SizeIs(4));
    EXPECT_FALSE(c.nodes[0].inits[0].id == c.nodes[0].inits[2].id) << "an id serves one epoch";
    for (const uint64_t session : {1, 2}) EXPECT_THAT(c.joined[session], SizeIs(2));
  }
}

TEST(MembersTest, TheDeathOfAWorkerOfItsNodeThatDoesNotServeItIsNothingToAGroup) {
  OneGroup c;
  c.KillWorker(0, kCpuWorker);
  EXPECT_EQ(c.Group().state, GroupState::kReady);
  EXPECT_THAT(c.reforms[1], IsEmpty());
}

TEST(MembersTest, AWorkersAnswerCountsForThatWorkerOnly) {
  SmallCluster c(1);
  c.silent = {kFirst, kSecond};
  c.Attach(0, 1);
  c.JoinAt(0, 1, 1, GpuSpec(2), {0, 1}, {kFirst, kSecond});
  ASSERT_THAT(c.nodes[0].started, SizeIs(2));
  const StartTenant start = c.nodes[0].started[0];
  for (int twice = 0; twice < 2; ++twice) {
    c.Give(0, TenantReady{c.nodes[0].gpu_worker, start.group, start.formation});
    EXPECT_EQ(c.Group().state, GroupState::kBootstrapping);
  }
  c.Give(0, TenantReady{c.nodes[0].worker, start.group, start.formation});
  EXPECT_EQ(c.Group().state, GroupState::kBootstrapping);
  c.Give(0, TenantReady{c.nodes[0].other_gpu_worker, start.group, start.formation});
  EXPECT_EQ(c.Group().state, GroupState::kReady);
  EXPECT_THAT(c.joined[1], SizeIs(1));
}

TEST(MembersTest, AWorkerThatCannotServeIsNamedWithItsNode) {
  SmallCluster c(1);
  c.silent = {kSecond};
  c.Attach(0, 1);
  c.JoinAt(0, 1, 1, GpuSpec(2), {0, 1}, {kFirst, kSecond});
  const StartTenant start = c.nodes[0].started.at(1);
  c.Give(0, TenantFailed{c.nodes[0].other_gpu_worker, start.group, start.formation,
                         absl::ResourceExhaustedError("staging is full")});
  ASSERT_THAT(c.failed[1], SizeIs(1));
  EXPECT_THAT(c.failed[1][0].ToString(),
              HasSubstr("node n0 cuda:1 cannot serve it: staging is full"));
}

TEST(MembersTest, AMissingWorkerIsWaitedForAndNamedWhenTheFormationIsLate) {
  SmallCluster c(1);
  c.KillWorker(0, kSecond);
  c.Attach(0, 1);
  c.JoinAt(0, 1, 1, GpuSpec(2), {0, 1}, {kFirst, kSecond}, absl::Seconds(30));
  EXPECT_THAT(c.nodes[0].inits, IsEmpty()) << "not all members are there";
  c.Pass(absl::Seconds(31));
  ASSERT_THAT(c.failed[1], SizeIs(1));
  EXPECT_THAT(c.failed[1][0].ToString(), HasSubstr("rank=1 host=host0 pid=1 phase=worker_down "
                                                   "node=n0 worker=cuda:1"));
}

TEST(MembersTest, ALateFormationSaysWhyAWorkerDoesNotServe) {
  SmallCluster c(2);
  c.KillWorker(1, kCpuWorker);
  c.Give(1, WorkerDied{Incarnation(), absl::UnavailableError("it does not start: no room"),
                       kCpuWorker});
  c.Attach(0, 1);
  c.Join(0, 1, 1, SmallSpec(2, "g"), {0}, absl::Seconds(30));
  c.Attach(1, 2);
  c.Join(1, 2, 1, SmallSpec(2, "g"), {1}, absl::Seconds(30));
  c.Pass(absl::Seconds(31));
  for (const uint64_t session : {1, 2}) {
    ASSERT_THAT(c.failed[session], SizeIs(1));
    EXPECT_THAT(c.failed[session][0].ToString(),
                AllOf(HasSubstr("the worker of node n1 does not serve: it does not start: no room; "
                                "mend what the worker lacks"),
                      Not(HasSubstr("start the missing ranks"))));
  }
}

TEST(MembersTest, AWorkerThatServesAgainIsNotSaidToBeDown) {
  SmallCluster c(1);
  c.KillWorker(0, kCpuWorker);
  EXPECT_EQ(c.last_report.workers.at(0).down_because, "signal 9");
  c.StartWorker(0, kCpuWorker);
  EXPECT_EQ(c.last_report.workers.at(0).down_because, "");
}

TEST(MembersTest, AWorkerThatIsNotUpYetIsNotSaidToHaveAnotherNccl) {
  SmallCluster c(1);
  c.nodes[0].nccl_version = "2.28.3";
  for (const WorkerName worker : {kFirst, kSecond}) c.KillWorker(0, worker);
  c.StartWorker(0, kFirst);
  c.Attach(0, 1);
  c.JoinAt(0, 1, 1, GpuSpec(2), {0, 1}, {kFirst, kSecond});
  EXPECT_EQ(c.Group().state, GroupState::kBootstrapping);
  c.StartWorker(0, kSecond);
  EXPECT_EQ(c.Group().state, GroupState::kReady);
}

TEST(MembersTest, RanksOfTheCpusWorkerAndOfAGpusAreRefusedByName) {
  SmallCluster c(1);
  c.Attach(0, 1);
  c.JoinAt(0, 1, 1, GpuSpec(2), {0}, {kFirst});
  c.Attach(0, 2);
  c.JoinAt(0, 2, 1, GpuSpec(2), {1}, {kCpuWorker});
  for (const uint64_t session : {1, 2}) {
    ASSERT_THAT(c.failed[session], SizeIs(1));
    EXPECT_THAT(
        c.failed[session][0].ToString(),
        AllOf(HasSubstr("UNIMPLEMENTED"), HasSubstr("group=gpu"),
              HasSubstr("node n0 cpu would serve rank=1"), HasSubstr("node n0 cuda:0 rank=0")));
  }
}

TEST(MembersTest, ARankThatMovesToAnotherWorkerOfItsNodeBringsANewEpoch) {
  OneGroup c;
  const GroupStatus before = c.Group();
  c.Gone(0, 2);
  c.Drained(0, 1);
  c.Attach(0, 3);
  c.JoinAt(0, 3, 1, GpuSpec(2), {1}, {kFirst});
  ASSERT_EQ(c.Group().state, GroupState::kReady);
  EXPECT_GT(c.Group().epoch, before.epoch);
  EXPECT_EQ(c.nodes[0].started.back().to, kFirst);
  EXPECT_THAT(c.nodes[0].started, SizeIs(3)) << "cuda:1 serves nothing any more";
  const size_t ended = c.nodes[0].ended.size();
  c.KillWorker(0, kSecond);
  EXPECT_EQ(c.Group().state, GroupState::kReady);
  EXPECT_THAT(c.nodes[0].ended, SizeIs(ended));
}

TEST(MembersTest, DrainingWaitsForEveryWorkerOfTheNode) {
  OneGroup c;
  c.nodes[0].worker_answers = false;
  c.Give(0, OrderRequested{{.request = RequestId{9}, .kind = OrderKind::kDrain, .name = "gpu"},
                           c.now + absl::Seconds(5)});
  EXPECT_EQ(c.nodes[0].num_drains, 2);
  const StartTenant start = c.nodes[0].started[0];
  c.Give(0, TenantDrained{c.nodes[0].gpu_worker, start.group, start.formation});
  EXPECT_THAT(c.rpcs[9], IsEmpty());
  c.KillWorker(0, kSecond);  // What was open there has ended with it.
  ASSERT_THAT(c.rpcs[9], SizeIs(1));
  EXPECT_TRUE(c.rpcs[9][0].status.ok()) << c.rpcs[9][0].status;
}

TEST(MembersTest, ANewCoordinatorTakesTheGroupOverAsItIs) {
  OneGroup c(4);
  const GroupStatus before = c.Group();
  c.StartCoordinator(absl::Seconds(2));
  c.Connect(0);
  c.Pass(absl::Seconds(3));
  EXPECT_EQ(c.Group().state, GroupState::kReady);
  EXPECT_EQ(c.Group().epoch, before.epoch);
  EXPECT_EQ(c.Group().formation, before.formation);
  for (const uint64_t session : {1, 2, 3, 4}) EXPECT_THAT(c.reforms[session], IsEmpty());
  EXPECT_THAT(c.nodes[0].ended, IsEmpty());
  c.KillWorker(0, kSecond);
  EXPECT_EQ(c.Group().state, GroupState::kReforming);
  for (const uint64_t session : {1, 2, 3, 4}) EXPECT_THAT(c.reforms[session], SizeIs(1));
}

TEST(MembersTest, ASecondTenantUsesTheSameMembers) {
  OneGroup c;
  GroupSpec tenant = GpuSpec(2);
  tenant.tenant = "b";
  c.Attach(0, 3);
  c.JoinAt(0, 3, 1, tenant, {0, 1}, {kFirst, kSecond});
  ASSERT_THAT(c.joined[3], SizeIs(1));
  EXPECT_THAT(c.nodes[0].inits, SizeIs(2));
  EXPECT_THAT(c.nodes[0].started, SizeIs(4));
  EXPECT_THAT(c.reforms[1], IsEmpty());
  c.KillWorker(0, kFirst);
  for (const uint64_t session : {1, 2, 3}) EXPECT_THAT(c.reforms[session], SizeIs(1));
}

}  // namespace
}  // namespace epd
