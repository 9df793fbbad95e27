// Goal: a group that an operator made is there under the next coordinator, too: empty as it was, or
// with those that it serves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/daemon/control/small_cluster.h"

namespace epd {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

class PersistentTest : public testing::Test {
 protected:
  PersistentTest() : c(2) {}

  void Create(const GroupSpec& spec) {
    c.Give(0, OrderRequested{{.request = RequestId{++request_},
                              .kind = OrderKind::kCreate,
                              .spec = spec,
                              .proposed = GroupId{500 + request_}},
                             c.now + absl::Minutes(1)});
    ASSERT_TRUE(c.rpcs[request_].at(0).status.ok());
  }

  // A coordinator that knows what the last one would have stored.
  void NextCoordinator(absl::Duration grace) {
    c.persistent = c.coordinator->Persistent();
    c.StartCoordinator(grace);
    c.Connect(0);
    c.Connect(1);
    c.Pass(grace);
  }

  SmallCluster c;
  uint64_t request_ = 0;
};

TEST_F(PersistentTest, AGroupWithoutRanksIsThereAgain) {
  Create(SmallSpec(2));
  const GroupId id = c.Group().id;
  NextCoordinator(absl::Seconds(3));
  EXPECT_EQ(c.Group().id, id);
  EXPECT_TRUE(c.Group().orchestrated);
  EXPECT_EQ(c.Group().state, GroupState::kForming);
  c.AttachAndJoin(0, 1, SmallSpec(2), {0});
  c.AttachAndJoin(1, 2, SmallSpec(2), {1});
  EXPECT_EQ(c.Group().state, GroupState::kReady);
}

TEST_F(PersistentTest, AGroupThatServesGoesOnAndOutlivesItsRanks) {
  Create(SmallSpec(2));
  c.AttachAndJoin(0, 1, SmallSpec(2), {0});
  c.AttachAndJoin(1, 2, SmallSpec(2), {1});
  ASSERT_EQ(c.Group().state, GroupState::kReady);
  const Epoch epoch = c.Group().epoch;
  NextCoordinator(absl::Seconds(3));
  EXPECT_EQ(c.Group().state, GroupState::kReady);
  EXPECT_EQ(c.Group().epoch, epoch);
  EXPECT_THAT(c.reforms[1], IsEmpty());
  c.Gone(0, 1);
  c.Gone(1, 2);
  EXPECT_EQ(c.Group().state, GroupState::kForming);
  EXPECT_TRUE(c.Group().orchestrated);
}

TEST_F(PersistentTest, MembersThatAreHeardLateKeepTheirPlaces) {
  Create(SmallSpec(2));
  c.AttachAndJoin(0, 1, SmallSpec(2), {0});
  c.AttachAndJoin(1, 2, SmallSpec(2), {1});
  c.persistent = c.coordinator->Persistent();
  c.StartCoordinator(absl::ZeroDuration());
  c.Pass(absl::Seconds(1));  // Nobody has reported yet, and there is no grace.
  c.Connect(0);
  c.Connect(1);
  c.Drained(0, 1);
  c.Drained(1, 2);
  EXPECT_EQ(c.Group().state, GroupState::kReady);
  EXPECT_TRUE(c.Group().orchestrated);
  EXPECT_THAT(c.group_ended[1], IsEmpty());
}

TEST_F(PersistentTest, WhatWasClosedIsNotKept) {
  Create(SmallSpec(2));
  Create(SmallSpec(2, "other"));
  EXPECT_THAT(c.coordinator->Persistent(), SizeIs(2));
  c.Give(1, OrderRequested{
                {.request = RequestId{++request_}, .kind = OrderKind::kClose, .name = "other"},
                c.now + absl::Minutes(1)});
  ASSERT_THAT(c.coordinator->Persistent(), SizeIs(1));
  EXPECT_EQ(c.coordinator->Persistent()[0].spec.name, "moe");
}

TEST_F(PersistentTest, WhatIsNotRestoredYetIsKept) {
  Create(SmallSpec(2));
  c.persistent = c.coordinator->Persistent();
  c.StartCoordinator(absl::Seconds(3));
  EXPECT_THAT(c.coordinator->Persistent(), ElementsAre(c.persistent[0]));
  EXPECT_THAT(c.coordinator->Groups(), IsEmpty());
}

// An order's answer waits until the store has what it did; `c` has a coordinator with a store.
class KeptTest : public PersistentTest {
 protected:
  KeptTest() {
    c.keeps_persistent = true;
    NextCoordinator(absl::ZeroDuration());
  }
  void Order(const std::string& name) {
    c.Give(0, OrderRequested{{.request = RequestId{++request_},
                              .kind = OrderKind::kCreate,
                              .spec = SmallSpec(2, name),
                              .proposed = GroupId{500 + request_}},
                             c.now + absl::Seconds(10)});
  }
  void Store() { c.Perform(c.coordinator->SetKept(c.now, c.coordinator->Persistent())); }
};

TEST_F(KeptTest, ACreateIsAnsweredOnceItIsStored) {
  Order("moe");
  EXPECT_EQ(c.Group().spec.name, "moe");
  EXPECT_THAT(c.rpcs[request_], IsEmpty());
  c.Perform(c.coordinator->SetKept(c.now, {}));  // Of before.
  EXPECT_THAT(c.rpcs[request_], IsEmpty());
  Store();
  ASSERT_THAT(c.rpcs[request_], SizeIs(1));
  EXPECT_EQ(c.rpcs[request_][0].status, absl::OkStatus());
  Order("moe");  // Said twice: it is stored already.
  EXPECT_THAT(c.rpcs[request_], SizeIs(1));
}

TEST_F(KeptTest, ACloseIsAnsweredOnceTheStoreHasForgotten) {
  Order("moe");
  Store();
  c.Give(1, OrderRequested{{.request = RequestId{77}, .kind = OrderKind::kClose, .name = "moe"},
                           c.now + absl::Seconds(10)});
  EXPECT_THAT(c.coordinator->Groups(), IsEmpty());
  EXPECT_THAT(c.rpcs[77], IsEmpty());
  Store();
  ASSERT_THAT(c.rpcs[77], SizeIs(1));
  EXPECT_EQ(c.rpcs[77][0].status, absl::OkStatus());
}

TEST_F(KeptTest, AStoreThatTakesNothingIsNamed) {
  Order("moe");
  c.Pass(absl::Seconds(11));
  ASSERT_THAT(c.rpcs[request_], SizeIs(1));
  EXPECT_EQ(c.rpcs[request_][0].status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(c.rpcs[request_][0].status.message()),
              testing::HasSubstr("the store has not taken it"));
  Order("moe");  // A retry waits again.
  EXPECT_THAT(c.rpcs[request_], IsEmpty());
  Store();
  EXPECT_EQ(c.rpcs[request_].at(0).status, absl::OkStatus());
}

TEST_F(KeptTest, WhatIsRefusedNeedsNoStore) {
  Order("moe");
  Store();
  c.Give(0, OrderRequested{{.request = RequestId{78},
                            .kind = OrderKind::kCreate,
                            .spec = SmallSpec(4),
                            .proposed = GroupId{900}},
                           c.now + absl::Seconds(10)});
  ASSERT_THAT(c.rpcs[78], SizeIs(1));
  EXPECT_FALSE(c.rpcs[78][0].status.ok());
}

}  // namespace
}  // namespace epd
