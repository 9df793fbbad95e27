// Goal: results of a started call are handed over once, whichever half comes first; what nobody fetches is forgotten; the calls
// of one site and place begin one after another; a number survives in two floats.
#include "client/jax/started_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace epd::jax {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::shared_ptr<StartedCall> MakeCall(const char* rows) {
  return std::make_shared<StartedCall>(Bytes(rows, std::strlen(rows)), Bytes("ww", 2));
}

TEST(StartedCallTest, WhoComesLastRunsWhatFollows) {
  std::vector<std::string> told;
  const auto tell = [&](const client::Status& status) { told.push_back(status.message); };
  StartedCall ends_first{Bytes(1), Bytes()};
  ends_first.End({client::Code::kAborted, "a"});
  EXPECT_THAT(told, IsEmpty());
  ends_first.Await(tell);
  EXPECT_THAT(told, ElementsAre("a"));

  StartedCall is_awaited_first{Bytes(1), Bytes()};
  is_awaited_first.Await(tell);
  EXPECT_THAT(told, ElementsAre("a"));
  is_awaited_first.End({client::Code::kAborted, "b"});
  EXPECT_THAT(told, ElementsAre("a", "b"));
}

TEST(StartedCallTest, ResultsAreCopiedIntoArraysOfTheirSize) {
  const auto call = MakeCall("rows");
  char rows[5] = {}, weights[3] = {};
  EXPECT_FALSE(call->Copy(rows, 5, weights, 2));
  EXPECT_FALSE(call->Copy(rows, 4, weights, 1));
  EXPECT_STREQ(rows, "");
  EXPECT_TRUE(call->Copy(rows, 4, weights, 2));
  EXPECT_STREQ(rows, "rows");
  EXPECT_STREQ(weights, "ww");
  EXPECT_TRUE(StartedCall(Bytes(), Bytes()).Copy(nullptr, 0, nullptr, 0)) << "empty arrays";
}

TEST(StartedCallsTest, EachIsTakenOnce) {
  StartedCalls calls;
  const StartedCalls::Time now{};
  const auto first = MakeCall("1"), second = MakeCall("2");
  const std::uint64_t one = calls.Add(first, now), two = calls.Add(second, now);
  EXPECT_NE(one, two);
  EXPECT_NE(one, 0u);
  EXPECT_EQ(calls.Take(two), second);
  EXPECT_EQ(calls.Take(two), nullptr);
  EXPECT_EQ(calls.Take(one), first);
  EXPECT_EQ(calls.Take(0), nullptr);
  EXPECT_EQ(calls.size(), 0u);
}

TEST(StartedCallsTest, WhatNobodyTakesIsForgotten) {
  StartedCalls calls;
  const StartedCalls::Time now{};
  const std::uint64_t old = calls.Add(MakeCall("old"), now);
  const std::uint64_t young = calls.Add(MakeCall("young"), now + std::chrono::minutes(1));
  calls.Add(MakeCall("new"), now + StartedCalls::kKept + std::chrono::seconds(1));
  EXPECT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls.Take(old), nullptr);
  EXPECT_NE(calls.Take(young), nullptr);
}

TEST(StartOrderTest, CallsOfAPlaceBeginOneAfterAnother) {
  StartOrder order;
  std::vector<std::string> begun;
  const auto begin = [&](const char* name) { return [&, name] { begun.emplace_back(name); }; };
  const StartOrder::Place here{0, 0}, there{0, 1};
  order.Add(here, begin("a"));
  order.Add(here, begin("b"));
  order.Add(here, begin("c"));
  order.Add(there, begin("x"));
  EXPECT_THAT(begun, ElementsAre("a", "x"));
  order.IsOver(here);
  EXPECT_THAT(begun, ElementsAre("a", "x", "b"));
  order.IsOver(here);
  order.IsOver(here);
  order.Add(here, begin("d"));
  EXPECT_THAT(begun, ElementsAre("a", "x", "b", "c", "d"));
}

TEST(TokenTest, ANumberStandsInTwoFloats) {
  for (const std::uint64_t number : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 24,
                                     (std::uint64_t{1} << 24) + 1, StartedCalls::kLimit - 1}) {
    float token[2];
    PutNumber(number, token);
    EXPECT_EQ(GetNumber(token), number);
  }
  for (const float bad : {-1.0f, std::nanf(""), 3e38f}) {
    const float token[2] = {1, bad};
    EXPECT_EQ(GetNumber(token), 0u) << bad;
  }
}

}  // namespace
}  // namespace epd::jax
