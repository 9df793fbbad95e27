// Goal: why a group's last formation that was READY is over is said by what ended it first, on every node, whatever follows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/daemon/control/small_cluster.h"

namespace epd {
namespace {

using testing::HasSubstr;

std::string Text(const absl::Status& status) { return status.ToString(); }

// A rank that hears of the lost stream leaves, or its process ends: that follows, and is not why.
TEST(FirstCauseTest, WhatFollowsFromTheFirstCauseDoesNotHideIt) {
  for (const bool leaves : {false, true}) {
    for (const bool in_one_report : {false, true}) {
      Pair c;
      c.Pass(absl::Seconds(20));
      const GroupStatus group = c.Group();
      c.hold_reports = in_one_report;
      c.Give(1, TenantBroken{c.nodes[1].worker, group.id, group.formation,
                             absl::UnavailableError("the stream to node n0 is lost")});
      if (leaves) {
        c.Give(1, LeaveRequested{SessionId{2}, RequestId{2}, group.id});
      } else {
        c.Gone(1, 2);
      }
      if (in_one_report) c.Perform(c.coordinator->TakeReport(c.now, c.held_reports.back()));
      EXPECT_EQ(c.Group().state, GroupState::kDegraded);
      EXPECT_THAT(Text(c.Group().cause), HasSubstr("the stream to node n0 is lost"));
      ASSERT_FALSE(c.reforms[1].empty());
      for (const NotifyReform& reform : c.reforms[1])
        EXPECT_THAT(Text(reform.cause), HasSubstr("the stream to node n0 is lost"));
      for (const auto& node : c.nodes) {
        for (const EndTenant& ended : node.ended)
          EXPECT_THAT(Text(ended.status), HasSubstr("the stream to node n0 is lost"));
      }
      c.hold_reports = false;
    }
  }
}

// The next formation has causes of its own.
TEST(FirstCauseTest, AGroupThatServedAgainHasANewFirstCause) {
  Pair c;
  c.Pass(absl::Seconds(20));
  Break(c);
  ASSERT_EQ(c.Group().state, GroupState::kReady);
  c.Gone(1, 2);
  EXPECT_THAT(Text(c.Group().cause), HasSubstr("rank=1 host=host1 pid=2"));
  EXPECT_THAT(Text(c.reforms[1].back().cause), HasSubstr("rank=1 host=host1 pid=2"));
}

// Formation 2 is READY and over before node 1 hears of either.
void ServeAgainUnheard(SmallCluster& c, const WorkerName& worker = kCpuWorker) {
  c.Pass(absl::Seconds(20));
  c.nodes[0].worker_answers = false;
  Break(c, worker);
  ASSERT_EQ(c.Group().state, GroupState::kReforming);
  c.cut_off = {1};
  c.nodes[0].worker_answers = true;
  c.Give(0, TenantReady{c.RunOf(0, worker), c.Group().id, c.Group().formation});
  ASSERT_EQ(c.Group().state, GroupState::kReady);
  ASSERT_EQ(c.Group().formation, Formation{2});
}

TEST(FirstCauseTest, ANodeThatDidNotHearThatTheGroupServedAgainSaysWhyThatIsOver) {
  Pair c;
  ServeAgainUnheard(c);
  c.Gone(0, 1);
  ASSERT_EQ(c.Group().state, GroupState::kDegraded);
  EXPECT_THAT(Text(c.reforms[2].back().cause), HasSubstr("the stream to node n1 is lost"));
  c.cut_off.clear();
  c.Pass(absl::Seconds(2));
  EXPECT_FALSE(c.reforms[2].back().wait);
  EXPECT_THAT(Text(c.reforms[2].back().cause), HasSubstr("rank=0 host=host0 pid=1"));
  EXPECT_THAT(Text(c.nodes[1].control->Groups().at(0).view.cause), HasSubstr("rank=0 host=host0"));
}

// Ranks 1 and 2 are one session's, at two workers of node 1.
struct AtTwoWorkers : SmallCluster {
  AtTwoWorkers() : SmallCluster(2) {
    Attach(0, 1);
    JoinAt(0, 1, 1, SmallSpec(3), {0}, {kGpuWorker});
    Attach(1, 2);
    JoinAt(1, 2, 1, SmallSpec(3), {1, 2}, {kGpuWorker, kOtherGpuWorker});
  }
};

TEST(FirstCauseTest, WhatEndsAFormationThatItDidNotHearToBeServedIsNotWhatEndedTheOneBefore) {
  AtTwoWorkers lost;
  ServeAgainUnheard(lost, SmallCluster::kGpuWorker);
  lost.KillWorker(1, SmallCluster::kOtherGpuWorker);
  EXPECT_THAT(Text(lost.nodes[1].ended.back().status), HasSubstr("signal 9"))
      << "as the ranks of node 0, which call in it, must hear";

  AtTwoWorkers replaced;
  ServeAgainUnheard(replaced, SmallCluster::kGpuWorker);
  replaced.cut_off.clear();
  replaced.StartCoordinator(/*grace=*/absl::Seconds(1));
  replaced.Connect(1);
  replaced.Pass(absl::Seconds(3));
  EXPECT_THAT(Text(replaced.nodes[1].ended.back().status),
              HasSubstr("the coordinator was replaced, and rank=0 did not report"));
  EXPECT_THAT(Text(replaced.nodes[1].control->Groups().at(0).view.cause),
              HasSubstr("the stream to node n1 is lost"))
      << "which session 2 was told of formation 1";
}

TEST(FirstCauseTest, SoItDoesWhenTheCoordinatorWasReplacedMeanwhile) {
  SmallCluster c(2);
  for (const uint32_t rank : {0, 1, 2})
    c.AttachAndJoin(rank == 1 ? 1 : 0, rank + 1, SmallSpec(3), {rank});
  ServeAgainUnheard(c);
  c.hold_reports = true;
  c.Gone(0, 1);
  c.hold_reports = false;
  c.cut_off.clear();
  c.StartCoordinator(/*grace=*/absl::Seconds(1));
  c.Connect(0);
  c.Connect(1);
  c.Pass(absl::Seconds(3));
  ASSERT_NE(c.Group().state, GroupState::kReady);
  EXPECT_EQ(c.Group().served, Formation{2}) << "as session 3 says";
  const auto cause = [&](size_t i) { return Text(c.nodes[i].control->Groups().at(0).view.cause); };
  EXPECT_THAT(cause(0), HasSubstr("rank=0 host=host0 pid=1")) << "what it knew before";
  EXPECT_THAT(cause(1), HasSubstr("the coordinator was replaced, and rank=0 did not report"));
}

// Formation 2 is READY and over in one: no session joins it, and no report names it as one that was served.
TEST(FirstCauseTest, WhatWasHeardToBeServedIsNotForgottenWithTheCoordinatorThatSaidIt) {
  Pair c;
  c.Pass(absl::Seconds(20));
  c.nodes[1].worker_answers = false;
  Break(c);
  const GroupStatus forms = c.Group();
  ASSERT_EQ(forms.formation, Formation{2});
  c.hold_reports = true;
  c.Give(1, TenantReady{c.nodes[1].worker, forms.id, forms.formation});
  c.Give(1, TenantBroken{c.nodes[1].worker, forms.id, forms.formation,
                         absl::UnavailableError("the stream to node n0 is lost again")});
  c.hold_reports = false;
  c.Perform(c.coordinator->TakeReport(c.now, c.held_reports.back()));
  c.Pass(absl::Seconds(2));
  const auto view = [&](size_t i) { return c.nodes[i].control->Groups().at(0).view; };
  for (const size_t i : {0, 1}) ASSERT_EQ(view(i).served, Formation{2});
  c.StartCoordinator(/*grace=*/absl::Seconds(1));
  c.Connect(0);
  c.Connect(1);
  c.Pass(absl::Seconds(3));
  for (const size_t i : {0, 1}) {
    EXPECT_EQ(view(i).served, Formation{2}) << "what is told of it is not told of formation 1";
    EXPECT_THAT(Text(view(i).cause), HasSubstr("lost again"));
  }
}

// A coordinator that has given a node up knows nothing of it: what it sends to it then is a greeting, which ends no group.
TEST(FirstCauseTest, ANodeThatWasGivenUpAndComesBackKnowsStillWhyItsFormationBroke) {
  Pair c;
  c.StartCoordinator(/*grace=*/absl::Seconds(1));
  c.Connect(0);
  c.Connect(1);
  c.cut_off = {1};
  c.Pass(absl::Seconds(2));
  const GroupStatus group = c.Group();
  ASSERT_EQ(group.state, GroupState::kReady) << "taken over, which node 1 has not heard";
  c.hold_reports = true;
  c.Give(1, TenantBroken{c.nodes[1].worker, group.id, group.formation,
                         absl::UnavailableError("the stream to node n0 is lost")});
  c.KillWorker(1);
  EXPECT_THAT(Text(c.reforms[2].back().cause), HasSubstr("the stream to node n0 is lost"));
  for (const char* node : {"n0", "n1"})
    c.Perform(c.coordinator->LoseNode(c.now, NodeId{node}, absl::UnavailableError("silent")));
  c.cut_off.clear();
  const size_t num_ended = c.nodes[1].ended.size();
  c.Connect(1);
  EXPECT_EQ(c.nodes[1].ended.size(), num_ended) << "the greeting";
  c.hold_reports = false;
  c.Pass(absl::Seconds(2));
  ASSERT_EQ(c.nodes[1].control->Groups().size(), 1u);
  EXPECT_THAT(Text(c.nodes[1].control->Groups()[0].view.cause),
              HasSubstr("the stream to node n0 is lost"));
}

}  // namespace
}  // namespace epd
