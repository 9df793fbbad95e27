// Goal: what is the same for all nodes of a formation is told to each of them once, whoever comes
// back is told again, and a node never acts on what it was not told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/daemon/control/small_cluster.h"

namespace epd {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

constexpr size_t kRanksPerNode = 8;

// A session for each rank, which is its number minus one.
void JoinAll(SmallCluster& c, const GroupSpec& spec) {
  for (uint32_t rank = 0; rank < spec.num_ranks; ++rank)
    c.AttachAndJoin(rank / kRanksPerNode, rank + 1, spec, {rank});
}

TEST(HeardTest, EachNodeIsToldTheMembersOfALargeFormationOnce) {
  constexpr size_t kNodes = 40;
  SmallCluster c(kNodes);
  const GroupSpec spec = SmallSpec(kNodes * kRanksPerNode);
  JoinAll(c, spec);
  ASSERT_EQ(c.Group().state, GroupState::kReady);
  // Besides, nodes hear of their own ranks while the group comes together.
  EXPECT_LE(c.num_members, kNodes * (spec.num_ranks + 20 * kRanksPerNode));
  for (const auto& node : c.nodes) {
    ASSERT_THAT(node.started, SizeIs(1));
    EXPECT_THAT(node.started[0].members.items(), SizeIs(spec.num_ranks));
    EXPECT_THAT(node.started[0].workers.items(), SizeIs(kNodes));
  }
  c.num_members = 0;
  c.Gone(0, 1);
  for (uint32_t session = 2; session <= spec.num_ranks; ++session)
    c.Drained((session - 1) / kRanksPerNode, session);
  c.AttachAndJoin(0, 1000, spec, {0});
  ASSERT_EQ(c.Group().state, GroupState::kReady);
  EXPECT_LE(c.num_members, kNodes * (spec.num_ranks + 40 * kRanksPerNode));
  for (const auto& node : c.nodes) {
    EXPECT_EQ(node.started.back().members[0].session, SessionId{1000});
    EXPECT_THAT(node.started.back().members.items(), SizeIs(spec.num_ranks));
  }
}

TEST(HeardTest, ANewWorkerIsToldAllAgain) {
  SmallCluster c(2);
  JoinAll(c, SmallSpec(16));
  ASSERT_EQ(c.Group().state, GroupState::kReady);
  c.KillWorker(0);
  c.StartWorker(0);
  for (uint32_t session = 1; session <= 16; ++session)
    c.Drained((session - 1) / kRanksPerNode, session);
  ASSERT_EQ(c.Group().state, GroupState::kReady);
  for (const auto& node : c.nodes) {
    EXPECT_GT(node.started.size(), 1u);
    EXPECT_THAT(node.started.back().members.items(), SizeIs(16));
    EXPECT_THAT(node.started.back().workers.items(), SizeIs(2));
  }
}

TEST(HeardTest, ANewCoordinatorIsNotBelievedToHaveToldAnything) {
  SmallCluster c(2);
  JoinAll(c, SmallSpec(16));
  ASSERT_EQ(c.Group().state, GroupState::kReady);
  c.StartCoordinator(absl::Seconds(3));
  c.num_members = 0;
  c.Connect(0);
  c.Connect(1);
  c.Pass(absl::Seconds(3));
  ASSERT_EQ(c.Group().state, GroupState::kReady);
  EXPECT_GE(c.num_members, 2 * 16u);
  for (const auto& node : c.nodes)
    EXPECT_THAT(node.control->Groups().at(0).view.members.items(), SizeIs(16));
}

TEST(HeardTest, ANodeThatWasNotToldSaysSoAndStartsNothing) {
  NodeControl node({.node = NodeId{"n"}, .incarnation = Incarnation{7}});
  const absl::Time now = absl::FromUnixSeconds(1000);
  node.Handle(now, WorkerStarted{{kCpuWorker, Incarnation{8}, false, "no NCCL"}});
  node.Handle(now, CoordinatorConnected{Incarnation{9}});
  ClusterView view;
  view.coordinator = Incarnation{9};
  view.seq = 1;
  view.report_seq = 1;
  view.node = NodeId{"n"};
  view.node_incarnation = Incarnation{7};
  GroupView& group = view.groups.emplace_back();
  group.id = GroupId{5};
  group.communicator = GroupId{6};
  group.spec = SmallSpec(2);
  group.state = GroupState::kReady;
  group.epoch = Epoch{1};
  group.formation = Formation{1};
  group.started = true;
  group.kept = true;
  const NodeControl::Effects effects = node.Handle(now, ViewReceived{view});
  EXPECT_THAT(node.Groups().at(0).view.members.items(), IsEmpty());
  const SendReport* report = nullptr;
  for (const NodeEffect& effect : effects) {
    EXPECT_FALSE(std::holds_alternative<StartTenant>(effect));
    if (const auto* sent = std::get_if<SendReport>(&effect)) report = sent;
  }
  ASSERT_NE(report, nullptr);
  for (const GroupWork& work : report->report.work) EXPECT_EQ(work.heard, Formation{});
}

TEST(HeardTest, ReportsThatAreTakenTogetherHaveOneViewEach) {
  constexpr size_t kNodes = 4;
  SmallCluster c(kNodes);
  c.hold_reports = true;
  JoinAll(c, SmallSpec(kNodes * kRanksPerNode));
  ASSERT_GT(c.held_reports.size(), kNodes);
  c.hold_reports = false;
  c.num_views = 0;
  const Rendezvous::Effects effects = c.coordinator->TakeReports(c.now, c.held_reports);
  size_t num_views = 0;
  for (const RendezvousEffect& effect : effects) num_views += effect.index() == 0 ? 1 : 0;
  EXPECT_EQ(num_views, kNodes);
  c.Perform(effects);
  EXPECT_EQ(c.Group().state, GroupState::kReady);
}

}  // namespace
}  // namespace epd
