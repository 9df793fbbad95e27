// Goal: an error says what a user of epd.jax or epd.torch can type, what to do first, and each fact once.
#include "client/program/api_words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace epd::program {
namespace {

using client::Code;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(ApiWordsTest, FieldsOfTheSpecHaveTheirPublicNames) {
  EXPECT_EQ(
      InApiWords(Code::kInvalidArgument,
                 "[epd:INVALID_ARGUMENT] group=g epoch=0 phase=forming: specs differ: hidden: "
                 "got 8, expected 16 (ranks 1); top_k: got 2, expected 4; odd ones: rank=1; "
                 "give every rank the same spec and join again",
                 nullptr),
      "[epd:INVALID_ARGUMENT] group=g epoch=0 phase=forming: give every rank the same "
      "arguments: specs differ: hidden_dim: got 8, expected 16 (ranks 1); max_top_k: got 2, "
      "expected 4; odd ones: rank=1");
  EXPECT_EQ(InApiWords(Code::kInvalidArgument, "recv_capacity: got 9; hidden_dim stays", nullptr),
            "recv_capacity_per_rank: got 9; hidden_dim stays");
}

TEST(ApiWordsTest, WhatAnotherRanksPackageRefusedHasItsWords) {
  const std::string said =
      "[epd:INVALID_ARGUMENT] group=j/g epoch=1 rank=0 phase=dispatch: Group.dispatch: "
      "recv_capacity is 0; expected 1 to "
      "recv_capacity_per_rank 512 of Group.join; correct it on this rank, and call again on all "
      "ranks";
  EXPECT_EQ(InApiWords(Code::kInvalidArgument, said, nullptr), said);
}

TEST(ApiWordsTest, TokensAreThoseThatWerePassedToTheOperation) {
  CallWords call = {.tokens_argument = "num_local_tokens", .shards = 2, .program = ""};
  const std::string text = "num_tokens: got 5, handle_mem was prepared for 6";
  EXPECT_EQ(InApiWords(Code::kInvalidArgument, text, &call),
            "num_local_tokens is 10, but prepare was given 12 tokens for this handle_mem (5 and 6 "
            "of each of 2 ranks)");
  call.tokens_argument = "the leading size of topk_idx";
  call.shards = 1;
  EXPECT_EQ(
      InApiWords(Code::kInvalidArgument, text, &call),
      "the leading size of topk_idx is 5, but prepare was given 6 tokens for this handle_mem");
}

TEST(ApiWordsTest, TheRemedyComesFirstAndOnce) {
  const std::string once = InApiWords(
      Code::kAborted,
      "[epd:ABORTED] group=a/b/0 epoch=3 rank=1 phase=announce: the plan is of an earlier "
      "epoch: prepare again and repeat the step",
      nullptr);
  EXPECT_EQ(
      once,
      "[epd:ABORTED] group=a/b/0 epoch=3 rank=1 phase=announce: call again: repeat the step on "
      "all ranks, from prepare on: the plan is of an earlier epoch");
  EXPECT_EQ(InApiWords(Code::kAborted, once, nullptr), once);
  EXPECT_THAT(InApiWords(Code::kUnavailable, "[epd:UNAVAILABLE] the socket is closed", nullptr),
              StartsWith("[epd:UNAVAILABLE] call again: "));
}

TEST(ApiWordsTest, ARankInAnotherFunctionSaysInWhich) {
  const CallWords call = {.tokens_argument = "", .shards = 1, .program = "jit_evaluate"};
  const std::string text = InApiWords(Code::kInvalidArgument,
                                      "the ranks wait for each other in different programs", &call);
  EXPECT_THAT(text,
              StartsWith("run the same functions in one order on all ranks, or give the calls "
                         "name=: "));
  EXPECT_THAT(text, HasSubstr("; this rank runs jit_evaluate"));
}

TEST(ApiWordsTest, GroupTenantAndEpochAreSaidOnce) {
  const std::string text =
      InApiWords(Code::kUnavailable,
                 "[epd:UNAVAILABLE] group=g tenant=t epoch=3 rank=0 phase=pull: rank 1 is gone; "
                 "group=g tenant=t epoch=3 rank=1 of group=gg and epoch=33, epoch=4; join again",
                 nullptr);
  EXPECT_THAT(text, HasSubstr("rank 1 is gone; rank=1 of group=gg and epoch=33, epoch=4"));
  EXPECT_THAT(text, Not(HasSubstr("join again;")));
  EXPECT_EQ(InApiWords(Code::kUnavailable,
                       "[epd:UNAVAILABLE] group=g epoch=1 rank=3 phase=announce: group=g epoch=1: "
                       "rank=2 has left",
                       nullptr),
            "[epd:UNAVAILABLE] group=g epoch=1 rank=3 phase=announce: call again: repeat the step "
            "on all ranks, which then join again: rank=2 has left");
}

TEST(ApiWordsTest, EveryRemedyCanBeFoundAndSaysWhetherToRetry) {
  EXPECT_EQ(FindRemedy(Code::kAborted, "").retry, "call again");
  EXPECT_EQ(FindRemedy(Code::kUnavailable, "rank 1 is gone").retry, "call again");
  EXPECT_EQ(FindRemedy(Code::kDeadlineExceeded, "").retry, "call again");
  EXPECT_EQ(FindRemedy(Code::kFailedPrecondition, "the group was left (finalize)").retry,
            "connect again");
  EXPECT_EQ(FindRemedy(Code::kFailedPrecondition, "two executions of one program").retry, "no");
  EXPECT_EQ(FindRemedy(Code::kInvalidArgument, "").retry, "no");
  EXPECT_EQ(FindRemedy(Code::kInternal, "").retry, "no");
}

}  // namespace
}  // namespace epd::program
