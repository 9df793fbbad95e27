// Goal: what is left of a group after a death, a leave, an operator or a restart does what its
// members were promised.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/core/resumable.h"
#include "tests/unit/daemon/control/small_cluster.h"

namespace epd {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr ProgramId kA = {1};

std::string Text(const absl::Status& status) { return status.ToString(); }

TEST(ReformationTest, ADeathIsToldAtOnceAndAReplacementGoesOn) {
  Pair c;
  ASSERT_EQ(c.Group().state, GroupState::kReady);
  c.Gone(1, 2);
  EXPECT_EQ(c.Group().state, GroupState::kDegraded);
  ASSERT_EQ(c.reforms[1].size(), 1u);
  EXPECT_FALSE(c.reforms[1][0].wait);
  EXPECT_THAT(
      Text(c.reforms[1][0].cause),
      AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("rank=1 host=host1 pid=2"), HasSubstr("is gone")));
  EXPECT_EQ(c.nodes[0].ended.size(), 1u);
  EXPECT_EQ(c.nodes[1].ended.size(), 1u);

  c.AttachAndJoin(1, 3, SmallSpec(2), {1});
  EXPECT_EQ(c.Group().state, GroupState::kReforming);  // Session 1 has not drained.
  c.Drained(0, 1, {{Rank{0}, kA, 5}});
  ASSERT_EQ(c.Group().state, GroupState::kReady);
  EXPECT_EQ(c.joined[1].back().request, RequestId{});
  EXPECT_EQ(c.joined[1].back().formation, Formation{2});
  EXPECT_EQ(c.joined[3].back().request, RequestId{1});
  EXPECT_EQ(c.joined[3].back().epoch, Epoch{1});  // Same workers, same epoch.
  EXPECT_THAT(c.nodes[0].started.back().bases, ElementsAre(ExecutionBase{Rank{0}, kA, 5}));
  EXPECT_EQ(c.nodes[1].inits.size(), 1u);
}

TEST(ReformationTest, WhatItsNodesCannotGoOnWithIsFormedAnewAtOnce) {
  Pair c;
  c.Pass(absl::Seconds(20));
  Break(c);
  ASSERT_EQ(c.Group().state, GroupState::kReady);
  EXPECT_EQ(c.Group().formation, Formation{2});
  EXPECT_THAT(Text(c.reforms[2].back().cause), HasSubstr("the stream to node n1 is lost"));
  EXPECT_TRUE(c.reforms[2].back().wait);
}

TEST(ReformationTest, ANodeKnowsThatCallsFailAlsoWhenTheCoordinatorDoesNotHearOfIt) {
  Pair c;
  const auto trouble = [&] { return c.nodes[0].control->Groups().at(0).trouble; };
  EXPECT_TRUE(trouble().ok());
  c.hold_reports = true;
  Break(c);
  ASSERT_EQ(c.nodes[0].control->Groups().at(0).view.state, GroupState::kReady);
  EXPECT_THAT(Text(trouble()), HasSubstr("the stream to node n1 is lost"));
  c.KillWorker(0);
  EXPECT_THAT(Text(trouble()), HasSubstr("the stream to node n1 is lost")) << "the first cause";
  c.hold_reports = false;
  c.StartWorker(0);
  c.Pass(absl::Seconds(2));
  c.Drained(0, 1);
  c.Drained(1, 2);
  c.Pass(absl::Seconds(2));
  ASSERT_EQ(c.Group().state, GroupState::kReady);
  EXPECT_TRUE(trouble().ok()) << "the new formation has none";
}

// Else it would be READY for ever, and refuse each call.
TEST(ReformationTest, AGroupThatWasBeingDrainedWhenTheCoordinatorWasReplacedFormsAnew) {
  Pair c;
  for (auto& node : c.nodes) node.worker_answers = false;
  c.Give(0, OrderRequested{{.request = RequestId{7}, .kind = OrderKind::kDrain, .name = "moe"},
                           c.now + absl::Seconds(1)});
  ASSERT_EQ(c.Group().state, GroupState::kDraining);
  ASSERT_EQ(c.nodes[1].num_drains, 1);
  c.StartCoordinator(/*grace=*/absl::Seconds(6));
  c.Connect(0);
  c.Connect(1);
  for (auto& node : c.nodes) node.worker_answers = true;
  c.Pass(absl::Seconds(8));
  ASSERT_EQ(c.reforms[1].size(), 1u);
  EXPECT_TRUE(c.reforms[1][0].wait);
  EXPECT_THAT(Text(c.reforms[1][0].cause), HasSubstr("an operator is closing the group"))
      << "the first cause, whoever coordinates";
  EXPECT_THAT(Text(c.Group().cause), HasSubstr("was being drained when the coordinator was"));
  c.Drained(0, 1);
  c.Drained(1, 2);
  c.Pass(absl::Seconds(1));
  ASSERT_EQ(c.Group().state, GroupState::kReady);
  EXPECT_EQ(c.Group().formation, Formation{2});
}

TEST(ReformationTest, NodesThatNeverReachEachOtherDoNotFormWithoutRest) {
  Pair c;
  const absl::Time end = c.now + absl::Minutes(1);
  uint64_t num_breaks = 0;
  for (; c.now < end && num_breaks < 1000; c.Pass(absl::Milliseconds(10))) {
    if (c.Group().state != GroupState::kReady) continue;
    Break(c);
    ++num_breaks;
  }
  EXPECT_GT(num_breaks, 10u);
  EXPECT_LT(num_breaks, 25u);
  // Once they do, the group serves again and forgets.
  c.Pass(absl::Seconds(20));
  ASSERT_EQ(c.Group().state, GroupState::kReady);
  Break(c);
  EXPECT_EQ(c.Group().state, GroupState::kReady);
}

TEST(ReformationTest, AReplacementOnAnotherNodeIsANewEpoch) {
  Pair c;
  c.Gone(1, 2);
  c.AttachAndJoin(0, 3, SmallSpec(2), {1});
  c.Drained(0, 1);
  ASSERT_EQ(c.Group().state, GroupState::kReady);
  EXPECT_EQ(c.joined[3].back().epoch, Epoch{2});
}

TEST(ReformationTest, ADeadWorkerIsReplacedAndCallsWait) {
  Pair c;
  c.KillWorker(1);
  EXPECT_EQ(c.Group().state, GroupState::kReforming);
  for (const uint64_t session : {1, 2}) {
    ASSERT_EQ(c.reforms[session].size(), 1u);
    EXPECT_TRUE(c.reforms[session][0].wait);
    EXPECT_EQ(c.reforms[session][0].cause.code(), absl::StatusCode::kUnavailable);
  }
  c.Drained(0, 1, {{Rank{0}, kA, 4}});
  c.Drained(1, 2, {{Rank{1}, kA, 3}});
  EXPECT_EQ(c.Group().ranks[1].phase, "worker_down");
  c.StartWorker(1);
  ASSERT_EQ(c.Group().state, GroupState::kReady);
  EXPECT_EQ(c.joined[2].back().epoch, Epoch{2});
  EXPECT_THAT(c.nodes[1].started.back().bases,
              ElementsAre(ExecutionBase{Rank{0}, kA, 4}, ExecutionBase{Rank{1}, kA, 4}));
  ASSERT_EQ(c.nodes[0].inits.size(), 2u);
  EXPECT_FALSE(c.nodes[0].inits[0].id == c.nodes[0].inits[1].id);
}

TEST(ReformationTest, CallsThatFailAfterDrainingAreCutToo) {
  Pair c;
  c.Gone(1, 2);
  c.Drained(0, 1, {{Rank{0}, kA, 5}});
  c.Drained(0, 1, {{Rank{0}, kA, 6}});  // One more has failed meanwhile.
  c.AttachAndJoin(1, 3, SmallSpec(2), {1});
  EXPECT_THAT(c.nodes[0].started.back().bases, ElementsAre(ExecutionBase{Rank{0}, kA, 6}));
}

TEST(ReformationTest, ACountThatComesAfterTheCutMakesAnother) {
  Pair c;
  c.Gone(1, 2);
  c.AttachAndJoin(1, 3, SmallSpec(2), {1});
  c.Drained(0, 1, {{Rank{0}, kA, 5}});
  const GroupId group = c.joined[1].back().group;
  // Sent before the client has read Joined: still of formation 1.
  c.Give(0, SessionDrained{SessionId{1}, group, Formation{1}, {{Rank{0}, kA, 6}}});
  EXPECT_EQ(c.Group().state, GroupState::kReforming);
  EXPECT_TRUE(c.reforms[3].back().wait);
  c.Drained(0, 1, {{Rank{0}, kA, 6}});
  c.Drained(1, 3);
  ASSERT_EQ(c.Group().state, GroupState::kReady);
  // Session 3 was in no formation in which that one failed, and its first call does not.
  EXPECT_THAT(c.nodes[0].started.back().bases, ElementsAre(ExecutionBase{Rank{0}, kA, 6}));
}

TEST(ReformationTest, ACountThatComesBeforeTheFormationServesCostsTheNewcomerNothing) {
  Pair c;
  c.Gone(1, 2);
  c.silent.insert(kCpuWorker);
  c.AttachAndJoin(1, 3, SmallSpec(2), {1});
  c.Drained(0, 1, {{Rank{0}, kA, 5}});
  const GroupId group = c.joined[1].back().group;
  c.Give(0, SessionDrained{SessionId{1}, group, Formation{1}, {{Rank{0}, kA, 6}}});
  EXPECT_EQ(c.Group().state, GroupState::kReforming);
  EXPECT_TRUE(c.joined[3].empty());
  for (const size_t node : {0, 1}) {
    const StartTenant started = c.nodes[node].started.back();
    c.Give(node, TenantReady{c.RunOf(node, started.to), started.group, started.formation});
  }
  ASSERT_EQ(c.Group().state, GroupState::kReady);
  EXPECT_EQ(c.joined[3].back().formation, c.Group().formation);
  EXPECT_THAT(c.nodes[0].started.back().bases, ElementsAre(ExecutionBase{Rank{0}, kA, 6}));
}

// A member of the formation before is as far behind as if the count had come in time.
TEST(ReformationTest, ACountThatComesAfterTheCutIsOfTheFormationBefore) {
  SmallCluster c(2);
  c.AttachAndJoin(0, 1, SmallSpec(3), {0});
  c.AttachAndJoin(1, 2, SmallSpec(3), {1});
  c.AttachAndJoin(1, 4, SmallSpec(3), {2});
  ASSERT_EQ(c.Group().state, GroupState::kReady);
  c.Gone(1, 2);
  c.AttachAndJoin(1, 3, SmallSpec(3), {1});
  c.Drained(0, 1, {{Rank{0}, kA, 5}});
  c.Drained(1, 4, {{Rank{2}, kA, 5}});
  ASSERT_EQ(c.Group().state, GroupState::kReady);
  const GroupId group = c.joined[1].back().group;
  c.Give(0, SessionDrained{SessionId{1}, group, Formation{1}, {{Rank{0}, kA, 6}}});
  c.Drained(0, 1, {{Rank{0}, kA, 6}});
  c.Drained(1, 3);
  c.Drained(1, 4, {{Rank{2}, kA, 5}});
  ASSERT_EQ(c.Group().state, GroupState::kReady);
  EXPECT_THAT(c.nodes[0].started.back().bases,
              ElementsAre(ExecutionBase{Rank{0}, kA, 6}, ExecutionBase{Rank{2}, kA, 6}));
}

TEST(ReformationTest, ASessionThatDoesNotDrainIsNamedAtTheDeadline) {
  Pair c;
  c.KillWorker(0);
  c.StartWorker(0);
  c.Drained(1, 2);
  c.Pass(absl::Minutes(6));
  for (const uint64_t session : {1, 2}) {
    ASSERT_EQ(c.group_ended[session].size(), 1u);
    EXPECT_THAT(Text(c.group_ended[session][0]),
                AllOf(HasSubstr("DEADLINE_EXCEEDED"),
                      HasSubstr("rank=0 host=host0 pid=1 phase=not_drained")));
  }
  EXPECT_TRUE(c.coordinator->Groups().empty());
}

TEST(ReformationTest, AfterALeaveTheNextJoinWaitsForTheRest) {
  Pair c;
  c.Give(0, LeaveRequested{SessionId{1}, RequestId{2}, c.joined[1][0].group});
  ASSERT_EQ(c.left[1].size(), 1u);
  EXPECT_TRUE(c.left[1][0].ok());
  EXPECT_THAT(Text(c.reforms[2].at(0).cause), HasSubstr("has left"));
  c.Join(0, 1, 3, SmallSpec(2), {0});
  EXPECT_EQ(c.joined[1].size(), 1u);
  c.Give(1, LeaveRequested{SessionId{2}, RequestId{2}, c.joined[2][0].group});
  c.Join(1, 2, 3, SmallSpec(2), {1});
  ASSERT_EQ(c.joined[1].size(), 2u);
  EXPECT_NE(c.joined[1][1].group, c.joined[1][0].group);
  EXPECT_EQ(c.joined[1][1].epoch, Epoch{2});
}

// Found by tests/long/run kill, worker.tenant.end: a replacement's Join was of a group that could form no more, and all
// who came again waited for that Join's deadline.
TEST(ReformationTest, AReplacementThatIsNotAnsweredIsOfTheNextGroupWhenTheOthersLeave) {
  SmallCluster c(2);
  c.AttachAndJoin(0, 1, SmallSpec(3), {0});
  c.AttachAndJoin(0, 2, SmallSpec(3), {1});
  c.AttachAndJoin(1, 3, SmallSpec(3), {2});
  ASSERT_EQ(c.joined[3].size(), 1u);
  const GroupId first = c.joined[1][0].group;
  c.Gone(1, 3);
  c.AttachAndJoin(1, 4, SmallSpec(3), {2});  // It waits until the others have drained.
  c.Give(0, LeaveRequested{SessionId{1}, RequestId{2}, first});
  c.Join(0, 1, 3, SmallSpec(3), {0});
  EXPECT_THAT(c.joined[4], IsEmpty());  // Rank 1 is still of the group that is over.
  c.Give(0, LeaveRequested{SessionId{2}, RequestId{2}, first});
  c.Join(0, 2, 3, SmallSpec(3), {1});
  ASSERT_EQ(c.joined[4].size(), 1u);
  ASSERT_EQ(c.joined[1].size(), 2u);
  ASSERT_EQ(c.joined[2].size(), 2u);
  EXPECT_NE(c.joined[4][0].group, first);
  EXPECT_EQ(c.joined[4][0].group, c.joined[1][1].group);
}

TEST(ReformationTest, AReplacementOfTheNextGroupIsWaitedForThereAsAnyOther) {
  Pair c;
  c.Gone(1, 2);
  c.AttachAndJoin(1, 3, SmallSpec(2), {1});
  c.Give(0, LeaveRequested{SessionId{1}, RequestId{2}, c.joined[1][0].group});
  c.Join(0, 1, 3, SmallSpec(2), {0});
  ASSERT_EQ(c.joined[3].size(), 1u);
  c.Gone(0, 1);
  c.AttachAndJoin(0, 4, SmallSpec(2), {0});
  EXPECT_THAT(c.joined[4], IsEmpty());  // Rank 1 has not drained.
  c.Drained(1, 3);
  EXPECT_EQ(c.joined[4].size(), 1u);
}

// Found by tests/long/run kill-faults, worker.arena.no_descriptor: epd kept the arenas' descriptors until the worker's end.
TEST(ReformationTest, WhatAWorkerHasMadeForAGroupThatHasEndedMeanwhileIsDropped) {
  SmallCluster c(2);
  c.nodes[0].worker_answers = c.nodes[1].worker_answers = false;
  c.AttachAndJoin(0, 1, SmallSpec(2), {0});
  c.AttachAndJoin(1, 2, SmallSpec(2), {1});
  ASSERT_EQ(c.nodes[0].started.size(), 1u);
  ASSERT_EQ(c.nodes[1].started.size(), 1u);
  const StartTenant asked = c.nodes[1].started[0];
  c.Give(0, TenantFailed{c.nodes[0].worker, asked.group, asked.formation,
                         absl::ResourceExhaustedError("no descriptor")});
  ASSERT_EQ(c.failed[2].size(), 1u);
  EXPECT_THAT(c.nodes[1].dropped, IsEmpty());
  c.Give(1, TenantReady{c.nodes[1].worker, asked.group, asked.formation});
  EXPECT_THAT(c.nodes[1].dropped, ElementsAre(asked.group));
}

TEST(ReformationTest, LeavingAnUnknownGroupIsNotFound) {
  Pair c;
  c.Give(0, LeaveRequested{SessionId{1}, RequestId{2}, GroupId{99}});
  EXPECT_EQ(c.left[1].at(0).code(), absl::StatusCode::kNotFound);
}

TEST(ReformationTest, ADrainLetsOperationsFinishAndClosesTheGroup) {
  Pair c;
  c.nodes[0].worker_answers = false;
  c.Give(0, OrderRequested{{.request = RequestId{50}, .kind = OrderKind::kDrain, .name = "moe"},
                           c.now + absl::Seconds(9)});
  EXPECT_EQ(c.Group().state, GroupState::kDraining);
  EXPECT_EQ(c.nodes[1].num_drains, 1);
  c.AttachAndJoin(0, 3, SmallSpec(2), {0});
  EXPECT_EQ(c.failed[3].at(0).code(), absl::StatusCode::kFailedPrecondition);
  c.Give(0, TenantDrained{c.nodes[0].worker, c.joined[1][0].group, Formation{1}});
  EXPECT_EQ(c.group_ended[1].at(0).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(c.group_ended[2].size(), 1u);
  ASSERT_EQ(c.rpcs[50].size(), 1u);
  EXPECT_TRUE(c.rpcs[50][0].status.ok()) << c.rpcs[50][0].status;
  EXPECT_TRUE(c.coordinator->Groups().empty());
}

TEST(ReformationTest, ADrainThatIsLateCutsOffAndSaysSo) {
  Pair c;
  c.nodes[0].worker_answers = false;
  c.Give(1,
         OrderRequested{
             {.request = RequestId{50}, .kind = OrderKind::kDrain, .group = c.joined[1][0].group},
             c.now + absl::Seconds(9)});
  c.Pass(absl::Seconds(9));
  EXPECT_EQ(c.rpcs[50].at(0).status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(c.group_ended[1].size(), 1u);
}

TEST(ReformationTest, AnOrchestratedGroupOutlivesItsMembersUntilItIsClosed) {
  SmallCluster c(1);
  c.Give(0, OrderRequested{{.request = RequestId{50},
                            .kind = OrderKind::kCreate,
                            .spec = SmallSpec(1),
                            .proposed = GroupId{5}},
                           c.now + absl::Seconds(9)});
  ASSERT_TRUE(c.rpcs[50].at(0).status.ok());
  c.AttachAndJoin(0, 1, SmallSpec(1), {0});
  EXPECT_EQ(c.joined[1].at(0).group, c.rpcs[50][0].group);
  c.Gone(0, 1);
  EXPECT_EQ(c.Group().state, GroupState::kForming);
  c.AttachAndJoin(0, 2, SmallSpec(1), {0});
  EXPECT_EQ(c.joined[2].at(0).epoch, Epoch{2});
  c.Give(0, OrderRequested{{.request = RequestId{51}, .kind = OrderKind::kClose, .name = "moe"},
                           c.now + absl::Seconds(9)});
  EXPECT_TRUE(c.rpcs[51].at(0).status.ok());
  EXPECT_EQ(c.group_ended[2].at(0).code(), absl::StatusCode::kFailedPrecondition);
  c.Give(0, OrderRequested{{.request = RequestId{52}, .kind = OrderKind::kClose, .name = "moe"},
                           c.now + absl::Seconds(9)});
  EXPECT_EQ(c.rpcs[52].at(0).status.code(), absl::StatusCode::kNotFound);
}

TEST(ReformationTest, ALostNodeTakesItsSessionsWithIt) {
  Pair c;
  Rendezvous::Effects effects = c.coordinator->LoseNode(
      c.now, NodeId{"n1"}, absl::UnavailableError("node n1 was silent for 10s"));
  c.Perform(effects);
  EXPECT_EQ(c.Group().state, GroupState::kDegraded);
  EXPECT_THAT(Text(c.reforms[1].at(0).cause),
              HasSubstr("node n1 host=host1, which holds rank=1, is gone: node n1 was silent"));
}

TEST(ReformationTest, ARestartedCoordinatorGoesOnAboveTheOldEpoch) {
  Pair c;
  c.StartCoordinator(absl::Seconds(3));
  c.Connect(0);
  c.Pass(absl::Seconds(3));
  c.Connect(1);  // Too late to be taken over as it was.
  EXPECT_EQ(c.Group().state, GroupState::kReforming);
  EXPECT_TRUE(c.reforms[1].at(0).wait);
  c.Drained(0, 1, {{Rank{0}, kA, 2}});
  c.Drained(1, 2);
  ASSERT_EQ(c.Group().state, GroupState::kReady);
  EXPECT_EQ(c.joined[1].back().group, c.joined[1].front().group);
  EXPECT_EQ(c.joined[1].back().epoch, Epoch{2});
  EXPECT_EQ(c.joined[1].back().formation, Formation{2});
}

TEST(ReformationTest, ViewsOfAnOldCoordinatorAreIgnored) {
  Pair c;
  ClusterView old;
  old.coordinator = Incarnation{77};
  old.seq = 1000000;
  old.node = NodeId{"n0"};
  old.node_incarnation = c.nodes[0].incarnation;
  old.report_seq = 1000000;
  EXPECT_THAT(c.nodes[0].control->Handle(c.now, ViewReceived{old}), IsEmpty());
  EXPECT_EQ(c.nodes[0].control->Memberships().size(), 1u);
}

TEST(ReformationTest, AShutdownDrainsRefusesAndEndsSessions) {
  Pair c;
  c.Give(0, ShutdownRequested{c.now + absl::Seconds(9)});
  EXPECT_EQ(c.group_ended[1].size(), 1u);
  EXPECT_EQ(c.told_to_end.count(1), 1u);
  EXPECT_EQ(c.told_to_end.count(2), 0u);
  EXPECT_TRUE(c.shutdown_done);
  c.Attach(0, 4);
  EXPECT_EQ(c.told_to_end.count(4), 1u);
}

// What all members of the cluster need to know, so that none takes it for a loss.
TEST(ReformationTest, AShutdownIsToldBeforeAnythingIsRefusedAndIsResumableOnEveryNode) {
  Pair c;
  c.nodes[1].worker_answers = false;  // Its operations go on for a while.
  c.Give(0, ShutdownRequested{c.now + absl::Seconds(9)});
  for (const uint64_t session : {1, 2}) {
    ASSERT_EQ(c.draining[session].size(), 1u) << session;
    EXPECT_TRUE(IsResumable(c.draining[session][0]));
    EXPECT_THAT(std::string(c.draining[session][0].message()),
                HasSubstr("the epd of node n0 is stopping"));
    EXPECT_TRUE(c.group_ended[session].empty()) << session;
  }
  for (const auto& node : c.nodes) EXPECT_EQ(node.num_drains_in_order, 1);
  c.Attach(1, 4);
  c.Join(1, 4, 1, SmallSpec(2), {1});
  EXPECT_TRUE(c.failed[4].empty()) << "it waits until the group has ended";
  c.Pass(absl::Seconds(9));
  for (const uint64_t session : {1, 2}) {
    ASSERT_EQ(c.group_ended[session].size(), 1u) << session;
    EXPECT_TRUE(IsResumable(c.group_ended[session][0]));
    EXPECT_EQ(c.group_ended[session][0].code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_TRUE(c.failed[4].empty()) << "it waits for the rank of the node that comes back";
}

TEST(ReformationTest, ADrainThatAnOperatorAsksForIsNotResumable) {
  Pair c;
  c.Give(0, OrderRequested{{.request = RequestId{9}, .kind = OrderKind::kDrain, .name = "moe"},
                           c.now + absl::Seconds(9)});
  for (const uint64_t session : {1, 2}) {
    ASSERT_EQ(c.draining[session].size(), 1u);
    EXPECT_FALSE(IsResumable(c.draining[session][0]));
    ASSERT_EQ(c.group_ended[session].size(), 1u);
    EXPECT_FALSE(IsResumable(c.group_ended[session][0]));
  }
  EXPECT_EQ(c.nodes[0].num_drains, 1);
  EXPECT_EQ(c.nodes[0].num_drains_in_order, 0);
}

TEST(ReformationTest, WhoIsNotTakenOverIsToldWhyAndMayJoinAgain) {
  Pair c;
  ASSERT_EQ(c.Group().state, GroupState::kReady);
  c.StartCoordinator(absl::ZeroDuration());
  c.Gone(0, 1);
  c.Connect(0);
  c.AttachAndJoin(0, 3, SmallSpec(2), {0});  // Before the coordinator hears of the other rank.
  c.Connect(1);
  ASSERT_EQ(c.group_ended[2].size(), 1u);
  EXPECT_THAT(Text(c.group_ended[2][0]), HasSubstr("the coordinator was restarted; join again"));
  EXPECT_EQ(c.nodes[1].transitions.back().to, GroupState::kClosed);
  EXPECT_EQ(c.nodes[1].transitions.back().why, c.group_ended[2][0]) << "the log says it, too";
  c.Join(1, 2, 2, SmallSpec(2), {1});
  EXPECT_EQ(c.Group().state, GroupState::kReady);
}

TEST(ReformationTest, AnOrchestratedGroupOutlivesTheStopOfANode) {
  SmallCluster o(2);
  o.Give(0, OrderRequested{{.request = RequestId{9},
                            .kind = OrderKind::kCreate,
                            .spec = SmallSpec(2),
                            .proposed = GroupId{77}},
                           o.now + absl::Seconds(9)});
  o.AttachAndJoin(0, 1, SmallSpec(2), {0});
  o.AttachAndJoin(1, 2, SmallSpec(2), {1});
  ASSERT_EQ(o.joined[2].size(), 1u);
  o.Give(0, ShutdownRequested{o.now + absl::Seconds(9)});
  EXPECT_EQ(o.group_ended[2].size(), 1u);
  EXPECT_EQ(o.coordinator->Groups().size(), 1u) << "it forms again when its members are back";
}

TEST(ReformationTest, AShutdownDoesNotWaitLongerThanItsDeadline) {
  Pair c;
  c.nodes[1].worker_answers = false;
  c.Give(0, ShutdownRequested{c.now + absl::Seconds(9)});
  EXPECT_FALSE(c.shutdown_done);
  c.Pass(absl::Seconds(9));
  EXPECT_TRUE(c.shutdown_done);
  EXPECT_EQ(c.told_to_end.count(1), 1u);
}

// A rank that cannot map its memory, say: on its node and on others.
TEST(ReformationTest, TheOthersHearWhyARankLeftThatCannotTakePart) {
  SmallCluster c(2);
  c.AttachAndJoin(0, 1, SmallSpec(3), {0});
  c.AttachAndJoin(0, 2, SmallSpec(3), {1});
  c.AttachAndJoin(1, 3, SmallSpec(3), {2});
  ASSERT_EQ(c.joined[3].size(), 1u);
  c.Give(0, LeaveRequested{SessionId{1}, RequestId{0}, c.joined[1][0].group,
                           absl::ResourceExhaustedError("cannot map 8 bytes; raise ulimit -v")});
  for (const uint64_t session : {2, 3}) {
    ASSERT_FALSE(c.reforms[session].empty()) << session;
    EXPECT_THAT(Text(c.reforms[session][0].cause),
                AllOf(HasSubstr("rank=0 host=host0 pid=1 phase=left"),
                      HasSubstr(" has left (cannot map 8 bytes; raise ulimit -v); finalise")))
        << session;
  }
}

}  // namespace
}  // namespace epd
