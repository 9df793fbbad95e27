// Goal: who asks why and names no group hears of the one in which somebody waits.
#include <gtest/gtest.h>

#include <string>

#include "client/cli/commands/command.h"

namespace epd::cli {
namespace {

epd::v1::Group& Add(epd::v1::ListGroupsResponse& groups, const std::string& name,
                    epd::v1::GroupState state = epd::v1::GROUP_STATE_READY) {
  epd::v1::Group& group = *groups.add_groups();
  group.mutable_spec()->set_name(name);
  group.set_state(state);
  return group;
}

void Await(epd::v1::Group& group, int64_t seconds) {
  epd::v1::Rank& rank = *group.add_ranks();
  rank.set_phase("absent_in_announce");
  rank.mutable_phase_age()->set_seconds(seconds);
}

TEST(GroupToExplainTest, IsTheOneThatHasWaitedLongest) {
  epd::v1::ListGroupsResponse groups;
  Add(groups, "forms", epd::v1::GROUP_STATE_FORMING);
  Await(Add(groups, "short"), 2);
  Await(Add(groups, "long"), 7);
  Add(groups, "idle").add_ranks()->set_phase("absent");
  EXPECT_EQ(GroupToExplain(groups), "long");
}

TEST(GroupToExplainTest, IsOneThatIsNotReadyWhereNobodyWaits) {
  epd::v1::ListGroupsResponse groups;
  Add(groups, "idle");
  Add(groups, "degraded", epd::v1::GROUP_STATE_DEGRADED);
  EXPECT_EQ(GroupToExplain(groups), "degraded");
}

TEST(GroupToExplainTest, IsTheOnlyOneElseNone) {
  epd::v1::ListGroupsResponse groups;
  EXPECT_EQ(GroupToExplain(groups), "");
  Add(groups, "only");
  EXPECT_EQ(GroupToExplain(groups), "only");
  Add(groups, "other");
  EXPECT_EQ(GroupToExplain(groups), "");
}

}  // namespace
}  // namespace epd::cli
