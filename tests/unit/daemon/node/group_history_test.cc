// Goal: what happened to a group is told once, whoever says it, and its causes are counted.
#include "daemon/node/group_history.h"

#include <gtest/gtest.h>

namespace epd {
namespace {

GroupTransition ToReady(Formation formation, GroupEvent event) {
  return {.group = GroupId(1),
          .name = "g",
          .epoch = Epoch(1),
          .formation = formation,
          .from = GroupState::kBootstrapping,
          .to = GroupState::kReady,
          .event = event};
}

TEST(GroupHistoryTest, WhatTheCoordinatorSaysAndThisNodeThenSeesIsToldOnce) {
  GroupHistory history;
  const absl::Time now = absl::UnixEpoch();
  history.Note(now, ToReady(Formation(1), GroupEvent::kServing));
  history.Note(now, ToReady(Formation(1), GroupEvent::kCount));
  ASSERT_EQ(history.newest().size(), 1u);
  EXPECT_EQ(history.newest().front().transition.event, GroupEvent::kServing);
  EXPECT_EQ(history.counts().size(), 1u);
  history.Note(now, ToReady(Formation(2), GroupEvent::kCount));
  history.Note(now, ToReady(Formation(2), GroupEvent::kCount));
  EXPECT_EQ(history.newest().size(), 3u) << "of a coordinator elsewhere this node says all";
}

}  // namespace
}  // namespace epd
