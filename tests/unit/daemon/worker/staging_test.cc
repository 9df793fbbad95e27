// Goal: arenas live as long as somebody uses them, and those of a dead session's living process are
// neither reused nor forgotten.
#include "daemon/worker/staging.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace epd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kPage = 4096;
const ArenaSetKey kKey = {{SessionId(1), 0}, {SessionId(2), 0}};

class StagingTest : public ::testing::Test {
 protected:
  void Use(ArenaSetId set) {
    const StagingGrant grant = staging_.Allocate(set, kPage, RegionOwner(1)).value();
    staging_.Committed(set, grant.region.offset + grant.region.bytes);
    staging_.Free(grant.region);
  }
  Staging staging_{16 * kPage, kPage};
};

TEST_F(StagingTest, SameKeySharesASetUntilItsLastUserGoes) {
  const Staging::Lease first = staging_.Acquire(kKey).value();
  const Staging::Lease second = staging_.Acquire(kKey).value();
  EXPECT_TRUE(first.created);
  EXPECT_FALSE(second.created);
  EXPECT_EQ(first.set, second.set);
  EXPECT_THAT(staging_.Release(first.set), IsEmpty());
  EXPECT_THAT(staging_.Release(first.set), ElementsAre(first.set));
  EXPECT_TRUE(staging_.Acquire(kKey)->created);
}

TEST_F(StagingTest, PagesAreMadeOnceAndFoundAgain) {
  const ArenaSetId set = staging_.Acquire(kKey)->set;
  StagingGrant grant = staging_.Allocate(set, 2 * kPage, RegionOwner(1)).value();
  EXPECT_EQ(grant.commit, (Region{set, 0, 2 * kPage}));
  staging_.Committed(set, 2 * kPage);
  staging_.Free(grant.region);
  grant = staging_.Allocate(set, 3 * kPage, RegionOwner(2)).value();
  EXPECT_EQ(grant.commit, (Region{set, 2 * kPage, kPage})) << "only what is not there";
}

TEST_F(StagingTest, PagesThatCouldNotBeMadeAreAskedForAgain) {
  const ArenaSetId set = staging_.Acquire(kKey)->set;
  staging_.Free(staging_.Allocate(set, kPage, RegionOwner(1))->region);
  EXPECT_EQ(staging_.Allocate(set, kPage, RegionOwner(2))->commit.bytes, kPage);
}

TEST_F(StagingTest, SetOfALingeringProcessStaysChargedUntilItIsGone) {
  const ArenaSetId set = staging_.Acquire(kKey)->set;
  Use(set);
  staging_.SessionDead(SessionId(2), /*process_alive=*/true);
  EXPECT_THAT(staging_.Release(set), IsEmpty());
  EXPECT_EQ(staging_.pool().Sets()[0].quarantined_bytes, 2 * kPage);
  EXPECT_TRUE(staging_.Acquire(kKey)->created) << "the old set was reused";
  EXPECT_THAT(staging_.ProcessGone(SessionId(1)), IsEmpty()) << "another session";
  EXPECT_THAT(staging_.ProcessGone(SessionId(2)), ElementsAre(set));
  EXPECT_EQ(staging_.pool().committed_bytes(), 0u);
}

TEST_F(StagingTest, ProcessThatGoesWhileOthersStillUseTheSetHoldsNothingBack) {
  const ArenaSetId set = staging_.Acquire(kKey)->set;
  Use(set);
  staging_.SessionDead(SessionId(2), /*process_alive=*/true);
  EXPECT_THAT(staging_.ProcessGone(SessionId(2)), IsEmpty());
  EXPECT_THAT(staging_.Release(set), ElementsAre(set));
}

}  // namespace
}  // namespace epd
