// Goal: a rule for a failpoint means what it says, at the hit that it names; one that cannot be read is refused by name.
#include "proto/failpoint/rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace epd::failpoint {
namespace {

using ::testing::HasSubstr;

std::vector<Rule> Read(std::string_view text) {
  std::vector<Rule> rules;
  EXPECT_EQ(Parse(text, &rules), "");
  return rules;
}

TEST(RulesTest, HappensAtItsHitAlone) {
  const std::vector<Rule> rules = Read("a.b=kill@3");
  EXPECT_EQ(Decide(rules, "a.b", 2).kind, Kind::kNone);
  EXPECT_EQ(Decide(rules, "a.b", 3).kind, Kind::kKill);
  EXPECT_EQ(Decide(rules, "a.b", 4).kind, Kind::kNone);
  EXPECT_EQ(Decide(rules, "a.c", 3).kind, Kind::kNone);
}

TEST(RulesTest, HappensAtTheFirstHitIfNoneIsNamed) {
  EXPECT_EQ(Decide(Read("a=stop"), "a", 1).kind, Kind::kStop);
  EXPECT_EQ(Decide(Read("a=stop"), "a", 2).kind, Kind::kNone);
}

TEST(RulesTest, HappensFromAHitOnwards) {
  const std::vector<Rule> rules = Read("a=drop@2+");
  EXPECT_EQ(Decide(rules, "a", 1).kind, Kind::kNone);
  EXPECT_EQ(Decide(rules, "a", 2).kind, Kind::kDrop);
  EXPECT_EQ(Decide(rules, "a", 9).kind, Kind::kDrop);
}

TEST(RulesTest, SeveralRulesStandInAnyNumberOfLines) {
  const std::vector<Rule> rules = Read("a=error@1;a=flip@2\n\nb=reorder\n");
  ASSERT_EQ(rules.size(), 3u);
  EXPECT_EQ(Decide(rules, "a", 1).kind, Kind::kError);
  EXPECT_EQ(Decide(rules, "a", 2).kind, Kind::kFlip);
  EXPECT_EQ(Decide(rules, "b", 1).kind, Kind::kReorder);
}

TEST(RulesTest, TimesHaveUnits) {
  EXPECT_EQ(Decide(Read("a=delay:200ms"), "a", 1).nanoseconds, 200'000'000);
  EXPECT_EQ(Decide(Read("a=delay:7ns@1"), "a", 1).nanoseconds, 7);
  EXPECT_EQ(Decide(Read("a=jump:-5s"), "a", 1).nanoseconds, -5'000'000'000);
}

TEST(RulesTest, EveryActionHasItsName) {
  for (int i = static_cast<int>(Kind::kKill); i <= static_cast<int>(Kind::kJump); ++i) {
    const auto kind = static_cast<Kind>(i);
    const bool timed = kind == Kind::kDelay || kind == Kind::kJump;
    const std::string text = "a=" + std::string(Name(kind)) + (timed ? ":1us" : "");
    EXPECT_EQ(Decide(Read(text), "a", 1).kind, kind) << text;
  }
}

TEST(RulesTest, WhatCannotBeReadIsRefusedByName) {
  for (const char* bad : {"a", "=kill", "a=", "a=explode", "a=none", "a=kill@0", "a=kill@",
                          "a=kill@x", "a=kill@1-", "a=kill:1s", "a=kill:", "a=delay", "a=delay:",
                          "a=delay:5", "a=delay:5h", "a=delay:99999999999s", "a=delay:ms"}) {
    std::vector<Rule> rules;
    EXPECT_THAT(Parse(bad, &rules), HasSubstr("'" + std::string(bad) + "'")) << bad;
  }
}

}  // namespace
}  // namespace epd::failpoint
