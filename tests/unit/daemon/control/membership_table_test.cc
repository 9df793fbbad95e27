// Goal: what a session has begun is counted once and never lost, and peers lose only what they had.
#include "daemon/control/node/membership_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace epd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr SessionId kSession{4};
constexpr GroupId kGroup{3};
constexpr ProgramId kProgram = {1};
constexpr absl::Duration kGrace = absl::Seconds(2);

class MembershipTableTest : public testing::Test {
 protected:
  MembershipTableTest() { outbox_.Begin(absl::UnixEpoch()); }

  absl::Status Join(uint64_t request = 1) {
    JoinRequested join;
    join.session = kSession;
    join.request = RequestId{request};
    join.spec.name = "moe";
    join.spec.num_ranks = 2;
    join.spec.num_experts = 2;
    join.spec.max_tokens_per_rank = 8;
    join.spec.recv_capacity_per_rank = 8;
    join.spec.hidden = 16;
    join.spec.max_token_dtype = Dtype::kFloat32;
    join.spec.backend = "cpu";
    join.ranks = {Rank{1}};
    join.deadline = absl::UnixEpoch() + absl::Minutes(1);
    SessionAttached client;
    client.host = "a7";
    client.pid = 4711;
    return members_.Join(join, client);
  }

  // The coordinator grants it, and its group serves.
  void Serve() {
    ClusterView view;
    view.claims = {{kSession, RequestId{1}, ClaimDisposition::kGranted, kGroup, absl::OkStatus()}};
    members_.TakeAnswers(view);
    members_.Follow(View(/*started=*/true), Formation{1}, /*serving=*/true);
  }

  GroupView View(bool started) {
    GroupView view;
    view.id = kGroup;
    view.formation = Formation{1};
    view.started = started;
    view.wait = true;
    return view;
  }

  // Of each NotifyReform since the last call: whether calls are to wait.
  std::vector<bool> ToldToWait() {
    std::vector<bool> told;
    for (const NodeEffect& effect : outbox_.TakeEffects()) {
      if (const auto* reform = std::get_if<NotifyReform>(&effect)) told.push_back(reform->wait);
    }
    return told;
  }

  std::vector<ExecutionCount> Reported() {
    NodeReport report;
    members_.PutInto(report);
    const std::optional<DrainRecord>& drained = report.claims.at(0).drained;
    return drained.has_value() ? drained->counts : std::vector<ExecutionCount>{};
  }

  Outbox outbox_;
  CoordinatorLink link_{NodeOptions{}};
  LocalWorkers workers_{{kCpuWorker}, outbox_};
  MembershipTable members_{kGrace, workers_, link_, outbox_};
};

TEST_F(MembershipTableTest, CountsAreTheHighestSaidAndOfOwnRanksOnly) {
  ASSERT_TRUE(Join().ok());
  Serve();
  members_.Follow(View(/*started=*/false), Formation{}, /*serving=*/false);
  EXPECT_TRUE(
      members_
          .TakeDrained(
              {kSession, kGroup, Formation{1}, {{Rank{1}, kProgram, 5}, {Rank{0}, kProgram, 9}}})
          .ok());
  EXPECT_THAT(Reported(), ElementsAre(ExecutionCount{Rank{1}, kProgram, 5}));
  EXPECT_TRUE(
      members_.TakeDrained({kSession, kGroup, Formation{1}, {{Rank{1}, kProgram, 7}}}).ok());
  EXPECT_TRUE(
      members_.TakeDrained({kSession, kGroup, Formation{1}, {{Rank{1}, kProgram, 6}}}).ok());
  EXPECT_THAT(Reported(), ElementsAre(ExecutionCount{Rank{1}, kProgram, 7}));
  EXPECT_TRUE(
      members_.TakeDrained({kSession, kGroup, Formation{2}, {{Rank{1}, kProgram, 8}}}).ok());
  EXPECT_THAT(Reported(), ElementsAre(ExecutionCount{Rank{1}, kProgram, 7}));
}

// What a process that lives on after its session may still write is charged until it ends; who has left writes nothing.
TEST_F(MembershipTableTest, AJoinedSessionHoldsStagingUntilItLeaves) {
  EXPECT_FALSE(members_.HoldsStaging(kSession));
  ASSERT_TRUE(Join().ok());
  EXPECT_FALSE(members_.HoldsStaging(kSession)) << "it was given none yet";
  Serve();
  EXPECT_TRUE(members_.HoldsStaging(kSession));
  EXPECT_FALSE(members_.HoldsStaging(SessionId{kSession.value + 1}));
  members_.Follow(View(/*started=*/false), Formation{}, /*serving=*/false);
  EXPECT_TRUE(members_.HoldsStaging(kSession)) << "calls of the old formation are ending";
  ASSERT_TRUE(members_.Leave({kSession, RequestId{2}, kGroup}).ok());
  EXPECT_FALSE(members_.HoldsStaging(kSession));
}

// Else a rank could call after its peer's new process was told that it has joined, and be refused with its old one's death.
TEST_F(MembershipTableTest, WhoWasToldNotToWaitIsToldToWaitOnceTheRanksHaveComeBack) {
  ASSERT_TRUE(Join().ok());
  Serve();
  GroupView lost = View(/*started=*/false);
  lost.wait = false;
  lost.cause = absl::UnavailableError("rank=0 is gone");
  members_.Follow(lost, Formation{}, /*serving=*/false);
  EXPECT_TRUE(members_.TakeDrained({kSession, kGroup, Formation{1}, {}}).ok());
  ToldToWait();
  GroupView forming = lost;
  forming.wait = true;
  for (int again = 0; again < 2; ++again) {
    members_.Follow(forming, Formation{}, /*serving=*/false);
    EXPECT_EQ(ToldToWait(), again == 0 ? std::vector<bool>{true} : std::vector<bool>{});
  }
  EXPECT_THAT(members_.Statuses().at(0).state, MembershipState::kDrained);
  EXPECT_THAT(members_.WaitsWithoutEnd(), IsEmpty());
  members_.Follow(lost, Formation{}, /*serving=*/false);
  EXPECT_THAT(ToldToWait(), ElementsAre(false)) << "it is lost again";
  EXPECT_EQ(members_.NextDeadline(), absl::InfiniteFuture());
}

TEST_F(MembershipTableTest, PeersLoseASessionThatTookPartAndNoOther) {
  ASSERT_TRUE(Join().ok());
  EXPECT_THAT(members_.Drop(kSession, absl::UnavailableError("gone")), IsEmpty());
  ASSERT_TRUE(Join().ok());
  Serve();
  const std::vector<LostMember> lost = members_.Drop(kSession, absl::UnavailableError("gone"));
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].group, kGroup);
  EXPECT_EQ(lost[0].formation, Formation{1});
  EXPECT_EQ(lost[0].who, "rank=1 host=a7 pid=4711 phase=gone");
}

TEST_F(MembershipTableTest, AJoinIsLeftToTheCoordinatorForTheGrace) {
  ASSERT_TRUE(Join().ok());
  EXPECT_EQ(members_.NextDeadline(), absl::UnixEpoch() + absl::Minutes(1) + kGrace);
  outbox_.Begin(members_.NextDeadline() - absl::Nanoseconds(1));
  EXPECT_THAT(members_.Expired(), IsEmpty());
  outbox_.Begin(members_.NextDeadline());
  ASSERT_EQ(members_.Expired().size(), 1u);
  EXPECT_THAT(std::string(members_.LateError(members_.Expired()[0]).message()),
              HasSubstr("rank=1 host=a7 pid=4711 phase=waiting"));
}

TEST_F(MembershipTableTest, ASessionJoinsAGroupOnce) {
  ASSERT_TRUE(Join(1).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(Join(1)));
  EXPECT_TRUE(absl::IsAlreadyExists(Join(2)));
}

}  // namespace
}  // namespace epd
