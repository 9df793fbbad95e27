// Goal: before workers meet, nodes that do not agree are named by majority; a late formation names
// every rank, completely and to everybody alike; a unique id serves once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/unit/daemon/control/small_cluster.h"

namespace epd {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string Text(const absl::Status& status) { return status.ToString(); }

// One rank on each node; returns the error that every session got, which must be the same.
std::string ErrorOfAll(SmallCluster& c, const GroupSpec& spec) {
  for (uint64_t i = 0; i < c.nodes.size(); ++i)
    c.AttachAndJoin(i, i + 1, spec, {static_cast<uint32_t>(i)});
  for (uint64_t session = 1; session <= c.nodes.size(); ++session) {
    if (c.failed[session].size() != 1u) return "no error";
    EXPECT_EQ(Text(c.failed[session][0]), Text(c.failed[1][0]));
  }
  return Text(c.failed[1][0]);
}

TEST(AgreementTest, AClockTenMinutesOffIsNamed) {
  std::vector<NodeFacts> facts(3);
  facts[1].clock_offset = absl::Minutes(10);
  SmallCluster c(3, facts);
  EXPECT_THAT(ErrorOfAll(c, SmallSpec(3)),
              AllOf(HasSubstr("FAILED_PRECONDITION"),
                    HasSubstr("the clock of node n1 is 10m ahead of the others"),
                    Not(HasSubstr("node n0"))));
}

TEST(AgreementTest, ClocksThatAgreeButForTheNetworkFormAGroup) {
  std::vector<NodeFacts> facts(3);
  facts[1].clock_offset = absl::Seconds(30);
  SmallCluster c(3, facts);
  EXPECT_EQ(ErrorOfAll(c, SmallSpec(3)), "no error");
  EXPECT_EQ(c.Group().state, GroupState::kReady);
}

TEST(AgreementTest, TheOddExchangeVersionIsNamedByMajority) {
  std::vector<NodeFacts> facts(3);
  for (NodeFacts& one : facts) one.exchange = 2;
  facts[0].exchange = 1;
  SmallCluster c(3, facts);
  EXPECT_THAT(
      ErrorOfAll(c, SmallSpec(3)),
      HasSubstr("epd: node n0 has exchange 1; most ranks have exchange 2; make them equal and "
                "join again [EPD-1403]"));
}

TEST(AgreementTest, NcclAndDriverAreComparedWhereTheyAreNeeded) {
  std::vector<NodeFacts> facts(3);
  for (NodeFacts& one : facts) one = {"", 1, "2.28.3", "570.1", absl::ZeroDuration()};
  facts[2].nccl_version = "2.27.1";
  facts[1].driver_version = "";
  SmallCluster c(3, facts);
  GroupSpec spec = SmallSpec(3);
  spec.backend = "cuda";
  EXPECT_THAT(ErrorOfAll(c, spec),
              AllOf(HasSubstr("NCCL: node n2 cuda:0 has 2.27.1; most ranks have 2.28.3"),
                    HasSubstr("driver: node n1 has none; most ranks have 570.1")));
  SmallCluster cpu(3, facts);
  EXPECT_EQ(ErrorOfAll(cpu, SmallSpec(3)), "no error");
  EXPECT_THAT(cpu.Group().id_digest, HasSubstr("none: NCCL differs: node n2"));
}

TEST(AgreementTest, ALateFormationNamesFourSetsToEverybodyAlike) {
  SmallCluster c(3);
  const GroupSpec spec = SmallSpec(4);
  GroupSpec other = spec;
  other.instance = "old";
  c.Attach(0, 1);
  c.Join(0, 1, 1, spec, {0}, absl::Seconds(30));
  c.AttachAndJoin(1, 2, spec, {1});
  c.AttachAndJoin(2, 3, spec, {2});
  c.Gone(2, 3);
  c.AttachAndJoin(2, 4, other, {3});
  c.Pass(absl::Seconds(31));
  ASSERT_EQ(c.failed[1].size(), 1u);
  ASSERT_EQ(c.failed[2].size(), 1u);
  EXPECT_EQ(Text(c.failed[1][0]), Text(c.failed[2][0]));
  EXPECT_THAT(Text(c.failed[1][0]),
              AllOf(HasSubstr("DEADLINE_EXCEEDED"), HasSubstr("missing: ranks 2-3"),
                    HasSubstr("arrived: rank=0 host=host0 pid=1 phase=arrived node=n0 client=test "
                              "version=0.1.0 last_seen="),
                    HasSubstr("dead: rank=2 host=host2 pid=3 phase=gone node=n2 client=test "
                              "version=0.1.0 last_seen=30s ago"),
                    HasSubstr("wrong epoch or spec: rank=3 host=host2 pid=4 "
                              "phase=brought_instance=old")));
  const FormationReport* report = c.coordinator->LastReport("moe");
  ASSERT_NE(report, nullptr);
  EXPECT_EQ(report->arrived.size(), 2u);
  EXPECT_EQ(report->missing.size(), 2u);
  EXPECT_EQ(report->dead.size(), 1u);
  EXPECT_EQ(report->wrong.size(), 1u);
  EXPECT_EQ(c.coordinator->LastReport("other"), nullptr);
}

TEST(AgreementTest, TheTextOfALargeFormationIsShortAndItsReportComplete) {
  SmallCluster c(2);
  const GroupSpec spec = SmallSpec(500);
  c.Attach(0, 1);
  std::vector<uint32_t> ranks;
  for (uint32_t rank = 0; rank < 400; ++rank) ranks.push_back(rank);
  c.Join(0, 1, 1, spec, ranks, absl::Seconds(30));
  c.Pass(absl::Seconds(31));
  ASSERT_EQ(c.failed[1].size(), 1u);
  EXPECT_LT(Text(c.failed[1][0]).size(), 16384u);
  EXPECT_THAT(Text(c.failed[1][0]), HasSubstr("and 336 more, which epctl why lists"));
  const FormationReport* report = c.coordinator->LastReport("moe");
  ASSERT_NE(report, nullptr);
  EXPECT_EQ(report->arrived.size(), 400u);
  EXPECT_EQ(report->missing.size(), 100u);
}

TEST(AgreementTest, DevicesOfSeveralNodesShareAnIdWhichTheirWorkersAreTold) {
  std::vector<NodeFacts> facts(2);
  for (NodeFacts& one : facts) one = {"", 1, "2.28.3", "570.1", absl::ZeroDuration()};
  GroupSpec spec = SmallSpec(2);
  spec.backend = "cuda";
  SmallCluster c(2, facts);
  EXPECT_EQ(ErrorOfAll(c, spec), "no error");
  for (const auto& node : c.nodes) {
    ASSERT_EQ(node.inits.size(), 1u);
    EXPECT_FALSE(node.inits[0].id.empty());
    ASSERT_EQ(node.started.size(), 1u);
    EXPECT_EQ(node.started[0].communicator, node.inits[0].group);
  }
}

TEST(UniqueIdTest, ALinkOnWhichIdsMayNotTravelCarriesNone) {
  SmallCluster c(2);
  c.Perform(c.coordinator->ConnectNode(c.now, NodeId{"n1"}, c.nodes[1].incarnation,
                                       {"unique ids do not travel unencrypted"}));
  c.AttachAndJoin(0, 1, SmallSpec(2), {0});
  c.AttachAndJoin(1, 2, SmallSpec(2), {1});
  ASSERT_EQ(c.Group().state, GroupState::kReady);
  EXPECT_EQ(c.Group().id_digest, "none: node n1: unique ids do not travel unencrypted");
  EXPECT_TRUE(c.nodes[0].inits.at(0).id.empty());
  GroupSpec cuda = SmallSpec(2, "cuda");
  cuda.backend = "cuda";
  c.Attach(0, 3);
  c.Join(0, 3, 1, cuda, {0});
  c.Attach(1, 4);
  c.Join(1, 4, 1, cuda, {1});
  ASSERT_EQ(c.failed[3].size(), 1u);
  EXPECT_THAT(Text(c.failed[3][0]), HasSubstr("unique ids do not travel unencrypted"));
}

TEST(UniqueIdTest, AReplayedIdIsRefusedByTheCoordinator) {
  SmallCluster c(1);
  c.replayed_id = "id-1";
  c.AttachAndJoin(0, 1, SmallSpec(1, "a"), {0});
  c.AttachAndJoin(0, 2, SmallSpec(1, "b"), {0});
  ASSERT_EQ(c.nodes[0].inits.size(), 2u);
  EXPECT_FALSE(c.nodes[0].inits[0].id.empty());
  EXPECT_TRUE(c.nodes[0].inits[1].id.empty());
  EXPECT_THAT(c.coordinator->Groups().at(1).id_digest, HasSubstr("it has served another epoch"));
}

TEST(UniqueIdTest, AReplayedIdIsRefusedByTheNodeAndAnOldEpochIsIgnored) {
  SmallCluster c(1);
  c.AttachAndJoin(0, 1, SmallSpec(1, "a"), {0});
  ASSERT_EQ(c.nodes[0].inits.size(), 1u);
  ClusterView view;
  view.coordinator = c.coordinator->incarnation();
  view.seq = 1000;
  view.node = NodeId{"n0"};
  view.node_incarnation = c.nodes[0].incarnation;
  view.report_seq = 1;
  GroupView group;
  group.id = GroupId{77};
  group.spec = SmallSpec(1, "b");
  group.state = GroupState::kBootstrapping;
  group.epoch = Epoch{9};
  group.node_workers = {kCpuWorker};
  group.id_known = true;
  group.unique_id = c.nodes[0].inits[0].id;
  view.groups.push_back(group);
  c.Give(0, ViewReceived{view});
  EXPECT_EQ(c.nodes[0].inits.size(), 1u) << "the worker must not be given a used id";
  view.seq = 1001;
  view.groups[0].epoch = Epoch{8};
  view.groups[0].unique_id = UniqueId("fresh");
  c.Give(0, ViewReceived{view});
  EXPECT_EQ(c.nodes[0].inits.size(), 1u) << "nor one of an older epoch";
}

TEST(UniqueIdTest, ReportsCarryAnIdOnlyUntilTheCoordinatorHasIt) {
  SmallCluster c(1);
  c.AttachAndJoin(0, 1, SmallSpec(1), {0});
  ASSERT_EQ(c.Group().state, GroupState::kReady);
  ASSERT_FALSE(c.last_report.work.empty());
  for (const GroupWork& work : c.last_report.work) EXPECT_TRUE(work.id.empty());
}

TEST(TakeOverTest, AGroupThatServesIsTakenOverAsItIsByANewCoordinator) {
  SmallCluster c(2);
  c.AttachAndJoin(0, 1, SmallSpec(2), {0});
  c.AttachAndJoin(1, 2, SmallSpec(2), {1});
  const GroupStatus before = c.Group();
  ASSERT_EQ(before.state, GroupState::kReady);
  c.StartCoordinator(absl::Seconds(2));
  c.Connect(0);
  c.Connect(1);
  c.Pass(absl::Seconds(3));
  const GroupStatus after = c.Group();
  EXPECT_EQ(after.state, GroupState::kReady);
  EXPECT_EQ(after.epoch, before.epoch);
  EXPECT_EQ(after.formation, before.formation);
  EXPECT_EQ(after.id_digest, before.id_digest);
  for (const uint64_t session : {1, 2}) {
    EXPECT_TRUE(c.reforms[session].empty());
    EXPECT_EQ(c.joined[session].size(), 1u);
  }
  c.KillWorker(1);  // ... and is looked after: a loss is noticed, in a new epoch.
  c.StartWorker(1);
  for (const uint64_t session : {1, 2}) ASSERT_EQ(c.reforms[session].size(), 1u);
  c.Drained(0, 1);
  c.Drained(1, 2);
  EXPECT_EQ(c.Group().state, GroupState::kReady);
  EXPECT_GT(c.Group().epoch, before.epoch);
}

TEST(TakeOverTest, AMemberThatIsMissingAtTheNewCoordinatorMakesTheGroupFormAgain) {
  SmallCluster c(2);
  c.AttachAndJoin(0, 1, SmallSpec(2), {0});
  c.AttachAndJoin(1, 2, SmallSpec(2), {1});
  c.StartCoordinator(absl::Seconds(2));
  c.Connect(0);
  c.Pass(absl::Seconds(3));
  EXPECT_NE(c.Group().state, GroupState::kReady);
  EXPECT_EQ(c.reforms[1].size(), 1u);
  c.Connect(1);
  c.Pass(absl::Seconds(3));
  EXPECT_EQ(c.reforms[2].size(), 1u);
  c.Drained(0, 1);
  c.Drained(1, 2);
  EXPECT_EQ(c.Group().state, GroupState::kReady);
}

// The simulator of both planes found it: the older one, which came first in the order of ids, was taken over, and the one
// that worked was told that its placement is wrong.
TEST(TakeOverTest, AnEpochThatAnotherTenantLeftBehindDoesNotComeBackInItsPlace) {
  for (uint64_t num_others = 0; num_others < 8; ++num_others) {  // Ids, and their order, differ.
    SmallCluster c(2);
    for (uint64_t i = 0; i < num_others; ++i)
      c.AttachAndJoin(0, 20 + i, SmallSpec(1, absl::StrCat("other", i)), {0});
    GroupSpec other = SmallSpec(1);
    other.tenant = "b";
    c.AttachAndJoin(1, 9, SmallSpec(1, "elsewhere"), {0});  // The second node has seen an epoch.
    c.AttachAndJoin(0, 1, SmallSpec(1), {0});
    ASSERT_EQ(c.joined[1].size(), 1u);
    // The first node is cut off as long as this coordinator lives.
    c.StartCoordinator(absl::Seconds(2));
    c.Connect(1);
    c.Pass(absl::Seconds(3));
    c.AttachAndJoin(1, 2, other, {0});
    ASSERT_EQ(c.joined[2].size(), 1u);
    ASSERT_GT(c.joined[2][0].epoch, c.joined[1][0].epoch);
    c.StartCoordinator(absl::Seconds(2));
    c.Connect(0);
    c.Connect(1);
    c.Pass(absl::Seconds(3));
    EXPECT_TRUE(c.reforms[2].empty());
    EXPECT_TRUE(c.group_ended[2].empty());
    EXPECT_EQ(c.reforms[1].size() + c.group_ended[1].size(), 1u);  // Its epoch is over.
  }
}

TEST(TakeOverTest, EpochsBeginAboveTheFloor) {
  SmallCluster c(1);
  RendezvousOptions options;
  options.incarnation = Incarnation{5};
  options.floor = Epoch{5000};
  options.started_at = c.now;
  c.coordinator = std::make_unique<Rendezvous>(options);
  c.Connect(0);
  c.AttachAndJoin(0, 1, SmallSpec(1), {0});
  EXPECT_EQ(c.Group().epoch, Epoch{5001});
  EXPECT_EQ(c.coordinator->max_epoch(), Epoch{5001});
}

// Views per node until a group of `num_nodes` x 8 ranks is READY.
double ViewsPerNode(size_t num_nodes) {
  SmallCluster c(num_nodes);
  const GroupSpec spec = SmallSpec(static_cast<uint32_t>(8 * num_nodes));
  for (uint32_t rank = 0; rank < spec.num_ranks; ++rank)
    c.AttachAndJoin(rank / 8, rank + 1, spec, {rank});
  EXPECT_EQ(c.Group().state, GroupState::kReady);
  return static_cast<double>(c.num_views) / static_cast<double>(num_nodes);
}

TEST(ScaleTest, MessagesGrowInProportionToTheNodes) {
  const double few = ViewsPerNode(8);
  EXPECT_LT(ViewsPerNode(64), few * 1.1);
  EXPECT_LT(few, 20);
}

}  // namespace
}  // namespace epd
