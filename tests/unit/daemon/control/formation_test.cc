// Goal: groups form when all ranks agree, and otherwise fail on every participant with a text that
// says what to do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/control/formation_errors.h"
#include "tests/unit/daemon/control/small_cluster.h"

namespace epd {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string Text(const absl::Status& status) { return status.ToString(); }

TEST(FormationTest, FourRanksOnTwoNodesBecomeReadyWithOneUniqueId) {
  SmallCluster c(2);
  const GroupSpec spec = SmallSpec(4);
  c.AttachAndJoin(0, 1, spec, {0, 1});
  c.AttachAndJoin(1, 2, spec, {3});
  EXPECT_EQ(c.Group().state, GroupState::kForming);
  EXPECT_EQ(c.Group().missing, std::vector<Rank>{Rank{2}});
  c.AttachAndJoin(1, 3, spec, {2});
  ASSERT_EQ(c.Group().state, GroupState::kReady);
  for (const uint64_t session : {1, 2, 3}) {
    ASSERT_EQ(c.joined[session].size(), 1u);
    EXPECT_EQ(c.joined[session][0].request, RequestId{1});
    EXPECT_EQ(c.joined[session][0].epoch, Epoch{1});
    EXPECT_EQ(c.joined[session][0].members.size(), 4u);
    EXPECT_EQ(c.joined[session][0].members[1].arena_index, 1u);
  }
  ASSERT_EQ(c.nodes[0].inits.size(), 1u);
  ASSERT_EQ(c.nodes[1].inits.size(), 1u);
  EXPECT_TRUE(c.nodes[0].inits[0].id == c.nodes[1].inits[0].id);
  EXPECT_FALSE(c.nodes[0].inits[0].id.empty());
  EXPECT_EQ(c.nodes[0].control->Groups()[0].id_digest, c.Group().id_digest);
}

TEST(FormationTest, TwoFormationsHaveDifferentUniqueIds) {
  SmallCluster c(1);
  c.AttachAndJoin(0, 1, SmallSpec(1, "a"), {0});
  c.AttachAndJoin(0, 2, SmallSpec(1, "b"), {0});
  ASSERT_EQ(c.nodes[0].inits.size(), 2u);
  EXPECT_FALSE(c.nodes[0].inits[0].id == c.nodes[0].inits[1].id);
}

TEST(FormationTest, WithoutNcclTheCpuBackendFormsWithoutAnId) {
  SmallCluster c(2);
  c.nodes[1].has_nccl = false;
  c.KillWorker(1);
  c.StartWorker(1);
  c.AttachAndJoin(0, 1, SmallSpec(2), {0});
  c.AttachAndJoin(1, 2, SmallSpec(2), {1});
  ASSERT_EQ(c.Group().state, GroupState::kReady);
  EXPECT_TRUE(c.nodes[0].inits[0].id.empty());
  EXPECT_EQ(c.Group().id_digest, "none: node n1: no libnccl.so.2");
}

TEST(FormationTest, WithoutNcclTheCudaBackendFailsBetweenGpus) {
  SmallCluster c(2);
  c.nodes[1].has_nccl = false;
  c.KillWorker(1, SmallCluster::kGpuWorker);
  c.StartWorker(1, SmallCluster::kGpuWorker);
  GroupSpec spec = SmallSpec(2);
  spec.backend = "cuda";
  c.AttachAndJoin(0, 1, spec, {0});
  c.AttachAndJoin(1, 2, spec, {1});
  ASSERT_EQ(c.failed[1].size(), 1u);
  EXPECT_THAT(Text(c.failed[1][0]), AllOf(HasSubstr("FAILED_PRECONDITION"),
                                          HasSubstr("node n1 cuda:0: no libnccl.so.2")));
}

TEST(FormationTest, AMismatchFailsEveryoneAndNamesTheOddOnes) {
  SmallCluster c(2);
  GroupSpec odd = SmallSpec(4);
  odd.hidden = 32;
  c.AttachAndJoin(0, 1, SmallSpec(4), {0});
  c.AttachAndJoin(1, 2, SmallSpec(4), {1});
  c.AttachAndJoin(1, 3, odd, {2});
  for (const uint64_t session : {1, 2, 3}) {
    ASSERT_EQ(c.failed[session].size(), 1u);
    EXPECT_EQ(c.failed[session][0].code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(Text(c.failed[session][0]),
                AllOf(HasSubstr("hidden: got 32, expected 16 (ranks 2)"),
                      HasSubstr("rank=2 host=host1 pid=3")));
    EXPECT_EQ(Text(c.failed[session][0]), Text(c.failed[1][0]));
  }
  EXPECT_TRUE(c.coordinator->Groups().empty());
}

TEST(FormationTest, TheMajorityIsRightEvenIfItCameLater) {
  SmallCluster c(1);
  GroupSpec odd = SmallSpec(4);
  odd.num_experts = 16;
  c.AttachAndJoin(0, 1, odd, {0});
  c.AttachAndJoin(0, 2, SmallSpec(4), {1, 2});
  EXPECT_THAT(Text(c.failed[2].at(0)), HasSubstr("num_experts: got 16, expected 8 (ranks 0)"));
}

TEST(FormationTest, AtATieTheLowestRankIsExpectedWhoeverCameFirst) {
  GroupSpec odd = SmallSpec(2);
  odd.hidden = 32;
  for (const bool lowest_first : {true, false}) {
    SmallCluster c(1);
    for (const bool lowest : {lowest_first, !lowest_first}) {
      c.AttachAndJoin(0, lowest ? 1 : 2, lowest ? SmallSpec(2) : odd, {lowest ? 0u : 1u});
    }
    for (const uint64_t session : {1, 2}) {
      EXPECT_THAT(Text(c.failed[session].at(0)),
                  HasSubstr("hidden: got 32, expected 16 (ranks 1)"));
    }
  }
}

TEST(FormationTest, ARankClaimedTwiceNamesBothHolders) {
  SmallCluster c(2);
  c.AttachAndJoin(0, 1, SmallSpec(4), {2});
  c.AttachAndJoin(1, 2, SmallSpec(4), {2});
  for (const uint64_t session : {1, 2}) {
    ASSERT_EQ(c.failed[session].size(), 1u);
    EXPECT_THAT(Text(c.failed[session][0]),
                AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("rank=2 host=host0 pid=1"),
                      HasSubstr("rank=2 host=host1 pid=2")));
  }
}

TEST(FormationTest, ABadJoinFailsItsCallerOnly) {
  SmallCluster c(1);
  c.AttachAndJoin(0, 1, SmallSpec(2), {0});
  c.Attach(0, 2);
  c.Join(0, 2, 1, SmallSpec(2), {});
  c.Join(0, 2, 2, SmallSpec(2), {2});
  c.Join(0, 2, 3, SmallSpec(2), {1, 1});
  GroupSpec bad = SmallSpec(2);
  bad.hidden = 0;
  c.Join(0, 2, 4, bad, {1});
  ASSERT_EQ(c.failed[2].size(), 4u);
  for (const absl::Status& status : c.failed[2])
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(c.failed[1].empty());
  c.Join(0, 2, 5, SmallSpec(2), {1});
  EXPECT_EQ(c.Group().state, GroupState::kReady);
}

TEST(FormationTest, ARankOfAReadyGroupIsHeld) {
  SmallCluster c(1);
  c.AttachAndJoin(0, 1, SmallSpec(1), {0});
  c.AttachAndJoin(0, 2, SmallSpec(1), {0});
  ASSERT_EQ(c.failed[2].size(), 1u);
  EXPECT_THAT(Text(c.failed[2][0]),
              AllOf(HasSubstr("ALREADY_EXISTS"), HasSubstr("rank=0 host=host0 pid=1")));
  EXPECT_EQ(c.Group().state, GroupState::kReady);
}

TEST(FormationTest, TheDeadlineListsWhoArrivedIsMissingIsDeadAndIsWrong) {
  SmallCluster c(2);
  c.AttachAndJoin(0, 1, SmallSpec(4), {0});
  c.AttachAndJoin(1, 2, SmallSpec(4), {1});
  c.AttachAndJoin(1, 3, SmallSpec(4), {2});
  c.Gone(1, 3);
  GroupSpec other = SmallSpec(4);
  other.instance = "second";
  c.Attach(1, 4);
  c.Join(1, 4, 1, other, {3}, absl::Hours(1));
  c.Pass(absl::Minutes(1));
  for (const uint64_t session : {1, 2}) {
    ASSERT_EQ(c.failed[session].size(), 1u);
    EXPECT_THAT(
        Text(c.failed[session][0]),
        AllOf(HasSubstr("DEADLINE_EXCEEDED"), HasSubstr("rank=0 host=host0 pid=1 phase=arrived"),
              HasSubstr("missing: ranks 2-3"), HasSubstr("rank=2 host=host1 pid=3 phase=gone"),
              HasSubstr("rank=3 host=host1 pid=4 phase=brought_instance=second")));
    EXPECT_EQ(Text(c.failed[session][0]), Text(c.failed[1][0]));
  }
  EXPECT_EQ(c.Group().spec.instance, "second");  // It had waited, and now forms.
}

TEST(FormationTest, ATenantThatCannotBeServedFailsTheGroup) {
  SmallCluster c(1);
  c.nodes[0].worker_answers = false;
  c.AttachAndJoin(0, 1, SmallSpec(1), {0});
  c.Give(0, TenantFailed{c.nodes[0].worker, c.Group().id, Formation{1},
                         absl::ResourceExhaustedError("no memory")});
  ASSERT_EQ(c.failed[1].size(), 1u);
  EXPECT_THAT(Text(c.failed[1][0]), AllOf(HasSubstr("RESOURCE_EXHAUSTED"), HasSubstr("no memory")));
}

TEST(FormationTest, AnotherInstanceWaitsUntilTheOldOneHasGone) {
  SmallCluster c(1);
  c.AttachAndJoin(0, 1, SmallSpec(1), {0});
  GroupSpec next = SmallSpec(1);
  next.instance = "next";
  c.AttachAndJoin(0, 2, next, {0});
  EXPECT_TRUE(c.joined[2].empty());
  EXPECT_TRUE(c.failed[2].empty());
  c.Gone(0, 1);
  ASSERT_EQ(c.joined[2].size(), 1u);
  EXPECT_NE(c.joined[2][0].group, c.joined[1][0].group);
  EXPECT_GT(c.joined[2][0].epoch, c.joined[1][0].epoch);
}

// Two jobs have met under one name: A0 and B1 are a group, B0 comes.
TEST(FormationTest, ARankThatIsClaimedOfAReadyGroupIsToldToTheHoldersGroup) {
  SmallCluster c(2);
  c.AttachAndJoin(0, 1, SmallSpec(2), {0});
  c.AttachAndJoin(1, 2, SmallSpec(2), {1});
  c.Give(1, SessionAttached{SessionId{3}, 3, 0, "host1", "python3 other.py", "0.1.0", 1700000000});
  c.Join(1, 3, 1, SmallSpec(2), {0});
  ASSERT_EQ(c.failed[3].size(), 1u);
  EXPECT_THAT(Text(c.failed[3][0]),
              AllOf(HasSubstr("ALREADY_EXISTS"), HasSubstr("rank=0 host=host0 pid=1"),
                    HasSubstr("give the jobs different job=/EPD_JOB")));
  EXPECT_EQ(c.Group().state, GroupState::kReady);
  for (const auto& node : c.nodes) {
    ASSERT_EQ(node.contested.size(), 1u);
    EXPECT_THAT(
        DescribeRival(node.contested[0].rival),
        AllOf(HasSubstr("rank 0 is also claimed by"), HasSubstr("host=host1 pid=3"),
              HasSubstr("client=python3 other.py"), HasSubstr("started=2023-11-14T22:13:20"),
              HasSubstr("give the jobs different job=/EPD_JOB")));
    ASSERT_EQ(node.control->Groups()[0].view.rivals.size(), 1u);
  }
  // It asks again and again: nobody is told twice.
  c.Join(1, 3, 2, SmallSpec(2), {0});
  EXPECT_EQ(c.failed[3].size(), 2u);
  EXPECT_EQ(c.nodes[0].contested.size(), 1u);
  EXPECT_EQ(c.Group().rivals.size(), 1u);
}

TEST(FormationTest, OnlyTheNewestRivalsAreKept) {
  SmallCluster c(1);
  c.AttachAndJoin(0, 1, SmallSpec(1), {0});
  for (uint64_t session = 2; session < 2 + 2 * kMaxRivals; ++session)
    c.AttachAndJoin(0, session, SmallSpec(1), {0});
  ASSERT_EQ(c.Group().rivals.size(), kMaxRivals);
  EXPECT_EQ(c.Group().rivals.back().who.pid, static_cast<int>(1 + 2 * kMaxRivals));
}

TEST(FormationTest, AnotherRunThatWaitsForAHeldRankIsToldToTheHoldersGroup) {
  SmallCluster c(1);
  c.AttachAndJoin(0, 1, SmallSpec(1), {0});
  GroupSpec next = SmallSpec(1);
  next.instance = "next";
  c.AttachAndJoin(0, 2, next, {0});
  ASSERT_EQ(c.Group().rivals.size(), 1u);
  EXPECT_TRUE(c.Group().rivals[0].waits);
  c.Pass(absl::Minutes(2));
  ASSERT_EQ(c.failed[2].size(), 1u);
  EXPECT_THAT(Text(c.failed[2][0]), AllOf(HasSubstr("instance \"next\""),
                                          HasSubstr("give the jobs different job=/EPD_JOB")));
}

TEST(FormationTest, WithoutACoordinatorAJoinFailsAfterItsDeadline) {
  SmallCluster c(1);
  c.Give(0, CoordinatorLost{absl::UnavailableError("stream broke")});
  c.Attach(0, 1);
  c.Join(0, 1, 1, SmallSpec(1), {0}, absl::Seconds(5));
  c.Pass(absl::Seconds(10));
  ASSERT_EQ(c.failed[1].size(), 1u);
  EXPECT_THAT(Text(c.failed[1][0]),
              AllOf(HasSubstr("DEADLINE_EXCEEDED"), HasSubstr("has not said why: stream broke;")));
}

TEST(FormationTest, AJoinAndAnOrderThatFailForWantOfACoordinatorSayTheLastCause) {
  SmallCluster c(1);
  c.Give(0, CoordinatorLost{absl::UnavailableError("the cluster has no coordinator yet")});
  c.Give(0, CoordinatorLost{absl::UnavailableError("etcd refuses writes: NOSPACE")});
  c.Attach(0, 1);
  c.Join(0, 1, 1, SmallSpec(1), {0}, absl::Seconds(5));
  c.Pass(absl::Seconds(10));
  ASSERT_EQ(c.failed[1].size(), 1u);
  EXPECT_THAT(Text(c.failed[1][0]), AllOf(HasSubstr("etcd refuses writes: NOSPACE"),
                                          testing::Not(HasSubstr("no coordinator yet"))));
}

}  // namespace
}  // namespace epd
