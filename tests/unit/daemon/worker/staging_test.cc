// Goal: arenas live as long as somebody uses them, and those of a dead session's living process are
// neither reused nor forgotten.
#include "daemon/worker/staging/staging.h"

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
  void Submission(ArenaSetId set) {
    const StagingGrant grant = staging_.Allocate(set, kPage).value();
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
  StagingGrant grant = staging_.Allocate(set, 2 * kPage).value();
  EXPECT_EQ(grant.commit, (Region{set, 0, 2 * kPage}));
  staging_.Committed(set, 2 * kPage);
  staging_.Free(grant.region);
  grant = staging_.Allocate(set, 3 * kPage).value();
  EXPECT_EQ(grant.commit, (Region{set, 2 * kPage, kPage})) << "only what is not there";
}

TEST_F(StagingTest, PagesThatCouldNotBeMadeAreAskedForAgain) {
  const ArenaSetId set = staging_.Acquire(kKey)->set;
  staging_.Free(staging_.Allocate(set, kPage)->region);
  EXPECT_EQ(staging_.Allocate(set, kPage)->commit.bytes, kPage);
}

TEST_F(StagingTest, SetOfALingeringProcessStaysChargedUntilItIsGone) {
  const ArenaSetId set = staging_.Acquire(kKey)->set;
  Submission(set);
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
  Submission(set);
  staging_.SessionDead(SessionId(2), /*process_alive=*/true);
  EXPECT_THAT(staging_.ProcessGone(SessionId(2)), IsEmpty());
  EXPECT_THAT(staging_.Release(set), ElementsAre(set));
}

constexpr DeviceArenas kDevice = {.arena_bytes = 4 * kPage, .stream_region_bytes = 2 * kPage};

class DeviceStagingTest : public ::testing::Test {
 protected:
  Staging staging_{16 * kPage, kPage, {}, 12 * kPage};
};

TEST_F(DeviceStagingTest, ASetIsATenantsOwnAndItsMemoryIsThereFromTheStart) {
  const ArenaSetId host = staging_.Acquire(kKey)->set;
  const ArenaSetId set = staging_.AcquireOnDevice(kKey, kDevice)->set;
  EXPECT_NE(set, host);
  EXPECT_EQ(staging_.arena_bytes(set), 4 * kPage);
  EXPECT_EQ(staging_.arena_bytes(host), 16 * kPage);
  const StagingGrant grant = staging_.Allocate(set, kPage).value();
  EXPECT_EQ(grant.region, (Region{set, 2 * kPage, kPage})) << "behind the stream region";
  EXPECT_EQ(grant.commit.bytes, 0u);
  EXPECT_TRUE(staging_.EverFits(set, 2 * kPage));
  EXPECT_FALSE(staging_.EverFits(set, 3 * kPage)) << "the stream region is for streams";
  EXPECT_EQ(staging_.FindEagerArea(set), EagerArea());
  staging_.Free(grant.region);
  EXPECT_THAT(staging_.Release(set), ElementsAre(set));
  EXPECT_FALSE(staging_.Acquire(kKey)->created) << "the other set is still shared";
}

TEST_F(DeviceStagingTest, WhatTheDeviceHasNotIsRefusedWithTheNumbers) {
  const ArenaSetId first = staging_.AcquireOnDevice(kKey, kDevice)->set;
  const absl::Status refused = staging_.AcquireOnDevice(kKey, kDevice).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              ::testing::HasSubstr("16384 bytes of device memory on each of 2 ranks, and 16384 of "
                                   "49152 bytes"));
  staging_.Release(first);
  EXPECT_TRUE(staging_.AcquireOnDevice(kKey, kDevice).ok());
}

TEST_F(DeviceStagingTest, SetOfALingeringProcessStaysChargedUntilItIsGone) {
  const ArenaSetId set = staging_.AcquireOnDevice(kKey, kDevice)->set;
  staging_.SessionDead(SessionId(2), /*process_alive=*/true);
  EXPECT_THAT(staging_.Release(set), IsEmpty());
  EXPECT_FALSE(staging_.AcquireOnDevice(kKey, kDevice).ok());
  EXPECT_THAT(staging_.ProcessGone(SessionId(2)), ElementsAre(set));
  EXPECT_TRUE(staging_.AcquireOnDevice(kKey, kDevice).ok());
}

}  // namespace
}  // namespace epd
