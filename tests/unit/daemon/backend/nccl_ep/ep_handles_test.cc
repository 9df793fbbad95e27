// Goal: a handle is told routes when it has others, and at no other time; what a member finds out by itself changes no answer, so
// that all members come to the same ones.
#include "daemon/backend/nccl_ep/ep_handles.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace epd::nccl_ep {
namespace {

EpRoutes RoutesOf(uint64_t plan) {
  return {.alignment = 4,
          .top_k = 2,
          .group_id = 1,
          .plan_id = plan,
          .recv_capacity = {100, 90},
          .num_tokens = {7, 8}};
}

// "A0" where handle 0 is told the routes of plan A, "a0" where it has them.
std::string After(EpHandles& handles, const std::string& plans) {
  std::string answers;
  for (const char plan : plans) {
    const EpUse use = handles.Use(RoutesOf(static_cast<uint64_t>(plan)));
    answers += use.tells ? plan : static_cast<char>(plan - 'A' + 'a');
    answers += std::to_string(use.handle);
  }
  return answers;
}

TEST(EpHandlesTest, AllOperationsOfAPlanTellItOnce) {
  EpHandles handles;
  EXPECT_EQ(After(handles, "AAAA"), "A0a0a0a0");
}

TEST(EpHandlesTest, TwoPlansByTurnsAreToldOnceEach) {
  EpHandles handles;
  EXPECT_EQ(After(handles, "ABABBA"), "A0B1a0b1b1a0");
}

TEST(EpHandlesTest, TheHandleThatWasUsedLeastLatelyIsToldAnew) {
  EpHandles handles;
  EXPECT_EQ(After(handles, "ABACAB"), "A0B1a0C1a0B1");
}

TEST(EpHandlesTest, WhatLandsOrHowManyTokensThereAreChangesTheRoutes) {
  EpHandles handles;
  EXPECT_TRUE(handles.Use(RoutesOf('A')).tells);
  EpRoutes more = RoutesOf('A');
  more.recv_capacity[1] = 91;
  EXPECT_TRUE(handles.Use(more).tells);
  EpRoutes fewer = RoutesOf('A');
  fewer.num_tokens[0] = 6;
  EXPECT_TRUE(handles.Use(fewer).tells);
  EXPECT_FALSE(handles.Use(fewer).tells);
  EpRoutes of_another_tenant = fewer;
  of_another_tenant.group_id = 2;
  EXPECT_TRUE(handles.Use(of_another_tenant).tells);
}

TEST(EpHandlesTest, EachAlignmentAndTopKHasHandlesOfItsOwn) {
  EpHandles handles;
  EpRoutes narrow = RoutesOf('A');
  narrow.top_k = 1;
  EpRoutes loose = RoutesOf('A');
  loose.alignment = 1;
  for (const EpRoutes& routes : {RoutesOf('A'), narrow, loose}) {
    const EpUse use = handles.Use(routes);
    EXPECT_TRUE(use.tells);
    EXPECT_EQ(use.handle, 0);
  }
  EXPECT_EQ(After(handles, "A"), "a0");
}

TEST(EpHandlesTest, WhereNumbersOfTokensAreNotToldTheRoutesAreToldEachTime) {
  EpHandles handles;
  EpRoutes routes = RoutesOf('A');
  routes.num_tokens.clear();
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(handles.Use(routes).tells);
}

TEST(EpHandlesTest, WhatWasToldIsSharedByTheOperationsThatUseItAndByNoOthers) {
  EpHandles handles;
  const EpUse first = handles.Use(RoutesOf('A'));
  const EpUse second = handles.Use(RoutesOf('A'));
  EXPECT_EQ(first.told, second.told);
  const EpUse other = handles.Use(RoutesOf('B'));
  handles.Use(RoutesOf('C'));
  const EpUse again = handles.Use(RoutesOf('A'));
  EXPECT_TRUE(again.tells);
  EXPECT_NE(again.told, first.told) << "an operation that is still under way keeps what it was";
  EXPECT_NE(again.told, other.told);
}

// Against a handle that is asked what it has, on members that forget, fail and see other plans as they like.
TEST(EpHandlesTest,
     MembersAnswerAlikeWhateverTheyFindOutAndNoHandleIsUsedWithOtherRoutesThanItHas) {
  std::mt19937 random(7);
  std::vector<EpHandles> members(3);
  std::vector<std::map<int, uint64_t>> has(members.size());
  int told = 0;
  for (int i = 0; i < 2000; ++i) {
    const uint64_t plan = random() % 4;
    std::set<bool> answers;
    for (size_t m = 0; m < members.size(); ++m) {
      const EpUse use = members[m].Use(RoutesOf(plan));
      answers.insert(use.tells);
      if (use.tells) has[m][use.handle] = plan;
      EXPECT_EQ(has[m].at(use.handle), plan);
      EXPECT_LT(use.handle, EpHandles::kOfEach);
      if (random() % 3 == 0) use.told->layout = EpLayout{{1, 2}, static_cast<int64_t>(m)};
      if (random() % 3 == 0) use.told->plan.checksum = random();
    }
    ASSERT_EQ(answers.size(), 1u) << "operation " << i;
    told += *answers.begin() ? 1 : 0;
  }
  EXPECT_GT(told, 500);
  EXPECT_LT(told, 1500);
}

}  // namespace
}  // namespace epd::nccl_ep
