// Goal: two calls of one site never become one: the next announce waits until the last call is over in both senses,
// whichever comes first.
#include "daemon/worker/engine/stream_sites.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "daemon/worker/engine/stream_round.h"

namespace epd {
namespace {

constexpr StreamSiteKey kSite{SessionId(1), 3};
constexpr OperationId kOperation{9};

Submission Announce(uint32_t claim) {
  return {.session = kSite.first, .slot = kSite.second, .claim = claim};
}

// A call that was announced as claim 1, takes part in kOperation and is published.
StreamSites Published() {
  StreamSites sites;
  EXPECT_TRUE(sites.TakeAnnounce(Announce(1), {}).begins);
  sites.Join(kSite, kOperation);
  EXPECT_EQ(sites.TakePublish(kSite).operation, kOperation);
  return sites;
}

TEST(StreamSitesTest, TheNextAnnounceIsHeldUntilPulledWasClaimedAndThePartIsOver) {
  for (const bool pulled_first : {false, true}) {
    StreamSites sites = Published();
    EXPECT_FALSE(sites.TakeAnnounce(Announce(2), {}).begins);
    EXPECT_EQ(sites.ExpectsPulled(kSite), kOperation);
    pulled_first ? sites.TakePulled(kSite) : sites.Leave(kSite);
    EXPECT_FALSE(sites.has_freed());
    pulled_first ? sites.Leave(kSite) : sites.TakePulled(kSite);
    ASSERT_TRUE(sites.has_freed());
    const std::vector<StreamSites::Held> begins = sites.TakeHeld();
    ASSERT_EQ(begins.size(), 1u);
    EXPECT_EQ(begins[0].submission, Announce(2));
    EXPECT_FALSE(sites.TakeAnnounce(Announce(3), {}).begins) << "the held one has begun";
  }
}

TEST(StreamSitesTest, AHeldAnnounceThatIsWrittenOverComesBack) {
  StreamSites sites = Published();
  EXPECT_FALSE(sites.TakeAnnounce(Announce(2), {}).written_over.has_value());
  const auto again = sites.TakeAnnounce(Announce(3), {});
  ASSERT_TRUE(again.written_over.has_value());
  EXPECT_EQ(again.written_over->submission, Announce(2));
  EXPECT_EQ(sites.TakeAllHeld().size(), 1u);
  EXPECT_TRUE(sites.TakeAllHeld().empty());
}

TEST(StreamSitesTest, APublishHearsWhyItsCallFailedAndTheNextCallDoesNot) {
  StreamSites sites;
  ASSERT_TRUE(sites.TakeAnnounce(Announce(1), {}).begins);
  sites.NoteCause(Announce(1), absl::AbortedError("why"));
  EXPECT_EQ(sites.TakePublish(kSite).cause, absl::AbortedError("why"));
  sites.TakePulled(kSite);
  ASSERT_TRUE(sites.TakeAnnounce(Announce(2), {}).begins);
  EXPECT_TRUE(sites.TakePublish(kSite).cause.ok());
}

shm::SlotRequest Call(uint32_t rank, uint32_t ordinal) {
  shm::SlotRequest request = {};
  request.rank = rank;
  request.ordinal = ordinal;
  request.execution = 77;
  return request;
}

ProgramId ProgramOf(const shm::SlotRequest& request) {
  ProgramId program;
  std::copy_n(request.program, program.size(), program.begin());
  return program;
}

TEST(StreamRoundTest, CallsCountFromTheOneAtWhichTheRanksWereSynchronised) {
  StreamRound round;
  const shm::SlotRequest first = round.Count(Call(0, 1));
  EXPECT_EQ(first.execution, 0u);
  EXPECT_EQ(round.Count(Call(0, 1)).execution, 0u) << "the one before failed";
  EXPECT_NE(ProgramOf(first), ProgramOf(round.Count(Call(0, 2)))) << "each site counts for itself";
  round.Synchronise({{Rank(0), ProgramOf(first)}});
  EXPECT_EQ(round.Count(Call(0, 1)).execution, 1u);
  EXPECT_EQ(round.Count(Call(0, 1)).execution, 2u);
  EXPECT_EQ(round.Count(Call(1, 1)).execution, 0u) << "this rank was not there";
  round.Restart();
  EXPECT_TRUE(round.synchronising());
  EXPECT_NE(ProgramOf(round.Count(Call(0, 1))), ProgramOf(first)) << "nothing earlier is matched";
}

}  // namespace
}  // namespace epd
