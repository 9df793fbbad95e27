// Goal: the figures that people see say how often operations ended how, how long each phase took, and which rank the others
// waited for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tests/unit/daemon/worker/exchange_harness.h"

namespace epd {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

class Figures : public ::testing::Test {
 protected:
  void SetUp() override { h_.StartTenant(h_.Spec(3)); }

  // Rank 2 comes 30 ms after rank 0 and 20 ms after rank 1.
  OperationId Announce() {
    const Submission first = h_.Take(h_.Request(0));
    h_.Advance(absl::Milliseconds(10));
    h_.Take(h_.Request(1));
    h_.Advance(absl::Milliseconds(20));
    h_.Take(h_.Request(2));
    return h_.operation(first);
  }
  const KindCounts& Prepares() {
    snapshot_ = h_.exchange.Snapshot(h_.now);
    return snapshot_.kinds[static_cast<size_t>(shm::Kind::kPrepare)];
  }
  static uint64_t NumOf(const KindCounts::PhaseTimes& times) {
    return std::accumulate(times.counts.begin(), times.counts.end(), uint64_t{0});
  }

  ExchangeHarness h_;
  ExchangeSnapshot snapshot_;
};

TEST_F(Figures, RanksWaitForTheOneThatAnnouncesLast) {
  Announce();
  EXPECT_THAT(h_.exchange.Snapshot(h_.now).tenants[0].waited_ns,
              ElementsAre(0, 0, 30'000'000, 0, 0, 20'000'000, 0, 0, 0));
}

TEST_F(Figures, EachWaitForTheLastRankIsInABucketOfThatRank) {
  Announce();
  const auto waits = h_.exchange.Snapshot(h_.now).tenants[0].waits;
  ASSERT_EQ(waits.size(), 3u);
  EXPECT_EQ(waits[2].sum_ns, 50'000'000);
  EXPECT_THAT(waits[2].counts, ElementsAre(0, 0, 0, 2, 0, 0)) << "both are of 10 to 100 ms";
  for (const size_t other : {0, 1}) EXPECT_THAT(waits[other].counts, Each(0)) << other;
}

TEST_F(Figures, EveryPhaseOfAGoodOperationIsTimedOnce) {
  const OperationId operation = Announce();
  h_.Advance(absl::Milliseconds(5));
  for (uint32_t r = 0; r < 3; ++r) h_.Step(r, operation, shm::Step::kPublish);
  h_.Advance(absl::Milliseconds(7));
  for (uint32_t r = 0; r < 3; ++r) h_.Step(r, operation, shm::Step::kPulled);

  const KindCounts& counts = Prepares();
  EXPECT_EQ(counts.by_outcome[0], 1u);
  const auto& [announce, admit, copy, move, pull] = counts.phases;
  EXPECT_EQ(announce.sum, absl::Milliseconds(30));
  EXPECT_EQ(copy.sum, absl::Milliseconds(5));
  EXPECT_EQ(pull.sum, absl::Milliseconds(7));
  EXPECT_EQ(copy.counts[6], 1u) << "between 3 and 10 ms";
  EXPECT_EQ(NumOf(announce) + NumOf(admit) + NumOf(copy) + NumOf(pull), 4u);
  EXPECT_EQ(NumOf(move), 0u);
}

TEST_F(Figures, AFailedOperationIsCountedByItsCode) {
  h_.Take(h_.Request(0));
  h_.SessionDead(h_.SessionOf(1), absl::UnavailableError("killed"));
  EXPECT_EQ(Prepares().by_outcome[static_cast<size_t>(absl::StatusCode::kUnavailable)], 1u);
  EXPECT_EQ(Prepares().by_outcome[0], 0u);
}

TEST_F(Figures, RowsThatFindNoRoomAreCountedWhereTheGroupDropsThem) {
  GroupSpec spec = h_.Spec(2);
  spec.drop_on_overflow = true;
  h_.StartTenant(spec, GroupId(77));
  std::vector<shm::SlotRequest> requests = {h_.Dispatch(0), h_.Dispatch(1)};
  for (shm::SlotRequest& request : requests) request.group_id = 77;
  requests[1].announce.demand = requests[1].recv_capacity + 11;
  const auto submissions = h_.AnnounceAll(requests);
  ASSERT_EQ(h_.code(submissions[0]), absl::StatusCode::kOk) << h_.text(submissions[0]);
  for (uint32_t rank = 0; rank < 2; ++rank)
    h_.Step(rank, h_.operation(submissions[0]), shm::Step::kPublish);
  uint64_t dropped = 0;
  for (const auto& tenant : h_.exchange.Snapshot(h_.now).tenants) dropped += tenant.dropped_rows;
  EXPECT_EQ(dropped, 11u);
}

}  // namespace
}  // namespace epd
