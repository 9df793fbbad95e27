// Goal: what one uid has of a node is counted over its sessions and groups, and no uid takes the share of another.
#include "daemon/control/uid_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "daemon/control/node_control.h"
#include "tests/unit/daemon/control/small_cluster.h"

namespace epd {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(CheckShareTest, EveryLimitHoldsExactlyAndIsNamedWithItsHolders) {
  for (const UidLimit& limit : kUidLimits) {
    UidShare limits = kNoUidLimits;
    limits.*limit.part = 5;
    UidUse use;
    use.all.*limit.part = 3;
    use.of_pid[12].*limit.part = 1;
    use.of_pid[13].*limit.part = 2;
    UidShare more;
    more.*limit.part = 2;
    EXPECT_TRUE(CheckShare(1000, use, more, limits).ok()) << limit.setting;
    more.*limit.part = 3;
    const absl::Status refused = CheckShare(1000, use, more, limits);
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << limit.setting;
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr("uid 1000 has 3 "), HasSubstr("pid 13 has 2, pid 12 has 1"),
                      HasSubstr(std::string("may have 5 (") + limit.setting + ")")));
  }
}

TEST(CheckShareTest, AsManyAsThereAreNumbersAreNoWayRound) {
  UidUse use;
  use.all.ranks = 3;
  UidShare limits = kNoUidLimits;
  limits.ranks = 5;
  EXPECT_FALSE(CheckShare(1, use, {.ranks = UINT64_MAX}, limits).ok());
  use.all.ranks = 9;  // The limit was lowered since.
  EXPECT_FALSE(CheckShare(1, use, {.ranks = 1}, limits).ok());
  EXPECT_TRUE(CheckShare(1, use, {.groups = 1}, limits).ok()) << "it asks for no more ranks";
}

// Two sessions of uid 1000 and one of uid 1001 on one node.
class NodeSharesTest : public testing::Test {
 protected:
  NodeSharesTest() {
    limits_.per_uid.ranks = 3;
    Attach(1, 1000);
    Attach(2, 1000);
    Attach(3, 1001);
  }
  void Attach(uint64_t session, uint32_t uid) {
    SessionAttached event;
    event.session = SessionId(session);
    event.pid = static_cast<int32_t>(100 + session);
    event.uid = uid;
    node_.Handle(now_, event);
  }
  // Why the Join is refused at once; "" when it waits for a coordinator.
  std::string Join(uint64_t session, const std::string& group, std::vector<Rank> ranks,
                   const std::string& tenant = "", std::vector<Rank> table = {}) {
    JoinRequested join;
    join.session = SessionId(session);
    join.request = RequestId(++request_);
    join.spec = SmallSpec(4, group);
    join.spec.tenant = tenant;
    join.spec.expert_owner = std::move(table);
    join.ranks = std::move(ranks);
    join.deadline = now_ + absl::Minutes(1);
    join.proposed = GroupId(request_);
    join.limits = limits_;
    for (const NodeEffect& effect : node_.Handle(now_, join)) {
      if (const auto* failed = std::get_if<ReplyFailed>(&effect))
        return absl::StrCat(absl::StatusCodeToString(failed->status.code()), " ",
                            failed->status.message());
    }
    return "";
  }

  absl::Time now_ = absl::UnixEpoch();
  NodeLimits limits_;
  NodeControl node_{NodeOptions{.node = NodeId{"a"}, .incarnation = Incarnation(1)}};
  uint64_t request_ = 0;
};

TEST_F(NodeSharesTest, RanksOfAllSessionsOfAUidCountTogetherAndOthersHaveTheirOwn) {
  EXPECT_EQ(Join(1, "g", {Rank(0), Rank(1)}), "");
  EXPECT_EQ(Join(2, "h", {Rank(0)}), "");
  EXPECT_THAT(Join(2, "i", {Rank(1)}),
              AllOf(HasSubstr("RESOURCE_EXHAUSTED group=i: uid 1000 has 3 ranks"),
                    HasSubstr("pid 101 has 2"), HasSubstr("max_ranks_per_uid")));
  EXPECT_EQ(Join(3, "j", {Rank(0), Rank(1), Rank(2)}), "");
  const std::map<uint32_t, UidUse> uses = node_.Uses();
  EXPECT_EQ(uses.at(1000).all.ranks, 3u);
  EXPECT_EQ(uses.at(1000).all.groups, 2u);
  EXPECT_EQ(uses.at(1001).all.ranks, 3u);
}

// Nobody to forget them: a client that joins and leaves must not fill the node's report.
TEST_F(NodeSharesTest, ReleasedJoinsCountUntilTheCoordinatorHasSeenThem) {
  EXPECT_EQ(Join(1, "g", {Rank(0), Rank(1), Rank(2)}), "");
  node_.Handle(now_, SessionGone{SessionId(1), absl::UnavailableError("closed")});
  EXPECT_THAT(Join(2, "g", {Rank(0)}), HasSubstr("max_ranks_per_uid"));
}

TEST_F(NodeSharesTest, AGroupCountsOnceForAUid) {
  limits_.per_uid = kNoUidLimits;
  limits_.per_uid.groups = 1;
  EXPECT_EQ(Join(1, "g", {Rank(0)}), "");
  EXPECT_EQ(Join(2, "g", {Rank(1)}), "");
  EXPECT_THAT(Join(1, "h", {Rank(0)}), HasSubstr("max_groups_per_uid"));
  EXPECT_EQ(Join(3, "h", {Rank(0)}), "");
}

TEST_F(NodeSharesTest, TablesOfExpertsCountByTheirEntries) {
  limits_.per_uid = kNoUidLimits;
  const std::vector<Rank> table(SmallSpec(4).num_experts, Rank(0));
  limits_.per_uid.table_entries = table.size();
  EXPECT_EQ(Join(1, "g", {Rank(0)}, "", table), "");
  EXPECT_THAT(Join(2, "h", {Rank(0)}, "", table), HasSubstr("max_table_entries_per_uid"));
  EXPECT_EQ(Join(2, "i", {Rank(0)}), "") << "without a table";
}

TEST_F(NodeSharesTest, JoinsOfOneSessionThatWaitAreBoundedAndAnotherSessionHasItsOwn) {
  limits_.per_uid = kNoUidLimits;
  for (int i = 0; i < 64; ++i) ASSERT_EQ(Join(1, absl::StrCat("g", i), {Rank(0)}), "") << i;
  EXPECT_THAT(Join(1, "more", {Rank(2)}),
              AllOf(HasSubstr("RESOURCE_EXHAUSTED group=more ranks 2: this session has 64 Joins"),
                    HasSubstr("expected fewer than 64; join again")));
  EXPECT_EQ(Join(2, "more", {Rank(0)}), "");
}

TEST_F(NodeSharesTest, ATenantIsOfOneUid) {
  limits_.per_uid = kNoUidLimits;
  EXPECT_EQ(Join(1, "g", {Rank(0)}), "");
  EXPECT_THAT(Join(3, "g", {Rank(1)}),
              AllOf(HasSubstr("PERMISSION_DENIED group=g"), HasSubstr("of uid 1000 (pid 101)"),
                    HasSubstr("of uid 1001")));
  EXPECT_EQ(Join(3, "g", {Rank(1)}, "other"), "");
}

}  // namespace
}  // namespace epd
