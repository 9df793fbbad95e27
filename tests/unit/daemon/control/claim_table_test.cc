// Goal: claims wait in order of arrival, and the coordinator is woken no later than any of them ends.
#include "daemon/control/rendezvous/claim_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace epd {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr absl::Duration kSecond = absl::Seconds(1);
const NodeId kNode{"n"};

Claim MakeClaim(uint64_t session, absl::Duration remaining, ClaimFate fate = ClaimFate::kHeld) {
  Claim claim;
  claim.session = SessionId{session};
  claim.request = RequestId{1};
  claim.spec.name = "moe";
  claim.ranks = {Rank{5}, Rank{static_cast<uint32_t>(session)}};
  claim.workers = {WorkerName{0}, WorkerName{1}};
  claim.remaining = remaining;
  claim.fate = fate;
  return claim;
}

NodeReport MakeReport(std::vector<Claim> claims) {
  NodeReport report;
  report.node = kNode;
  report.incarnation = Incarnation{7};
  report.claims = std::move(claims);
  return report;
}

ClaimKey MakeKey(uint64_t session) {
  return {kNode, Incarnation{7}, SessionId{session}, RequestId{1}};
}

TEST(ClaimTableTest, WaitingClaimsComeInOrderOfArrivalUntilTheyAreAnswered) {
  Changes changes;
  changes.Begin(absl::UnixEpoch());
  ClaimTable claims(changes);
  EXPECT_THAT(claims.Take(MakeReport({MakeClaim(9, kSecond)})), IsEmpty());
  EXPECT_THAT(claims.Take(MakeReport({MakeClaim(3, kSecond), MakeClaim(9, kSecond)})), IsEmpty());
  EXPECT_THAT(claims.WaitingFor("moe"), ElementsAre(MakeKey(9), MakeKey(3)));
  claims.Grant(MakeKey(9), GroupId{1});
  EXPECT_THAT(claims.WaitingFor("moe"), ElementsAre(MakeKey(3)));
  claims.Fail(MakeKey(3), absl::AbortedError("no"));
  EXPECT_THAT(claims.WaitingFor("moe"), IsEmpty());
}

TEST(ClaimTableTest, WhatANodeForgetsOrGivesUpIsReleased) {
  Changes changes;
  changes.Begin(absl::UnixEpoch());
  ClaimTable claims(changes);
  claims.Take(MakeReport({MakeClaim(1, kSecond), MakeClaim(2, kSecond)}));
  const std::vector<ReleasedClaim> released =
      claims.Take(MakeReport({MakeClaim(2, kSecond, ClaimFate::kLeft)}));
  ASSERT_EQ(released.size(), 2u);
  EXPECT_EQ(released[0].key, MakeKey(1));
  EXPECT_TRUE(released[0].vanished);
  EXPECT_EQ(released[1].key, MakeKey(2));
  EXPECT_EQ(released[1].fate, ClaimFate::kLeft);
  EXPECT_FALSE(released[1].vanished);
}

TEST(ClaimTableTest, TheEarliestDeadlineIsThatOfAClaimThatStillHasToMeetOne) {
  Changes changes;
  changes.Begin(absl::UnixEpoch());
  ClaimTable claims(changes);
  claims.Take(MakeReport({MakeClaim(1, kSecond), MakeClaim(2, 2 * kSecond)}));
  EXPECT_EQ(claims.Earliest(), absl::UnixEpoch() + kSecond);
  claims.Grant(MakeKey(1), GroupId{1});
  claims.MarkServed(MakeKey(1));
  claims.Tighten();
  EXPECT_EQ(claims.Earliest(), absl::UnixEpoch() + 2 * kSecond);
  changes.Begin(absl::UnixEpoch() + 2 * kSecond);
  EXPECT_THAT(claims.Expired(), ElementsAre(MakeKey(2)));
  claims.Fail(MakeKey(2), absl::DeadlineExceededError("late"));
  claims.Tighten();
  EXPECT_EQ(claims.Earliest(), absl::InfiniteFuture());
}

TEST(ClaimTableTest, ARankIsServedByTheWorkerOfItsPlaceInTheJoin) {
  Changes changes;
  changes.Begin(absl::UnixEpoch());
  ClaimTable claims(changes);
  claims.Take(MakeReport({MakeClaim(3, kSecond)}));
  EXPECT_EQ(claims.Worker(MakeKey(3), Rank{5}), (WorkerId{kNode, WorkerName{0}}));
  EXPECT_EQ(claims.Worker(MakeKey(3), Rank{3}), (WorkerId{kNode, WorkerName{1}}));
  EXPECT_EQ(claims.Holder(MakeKey(3), Rank{3}).arena_index, 1u);
}

}  // namespace
}  // namespace epd
