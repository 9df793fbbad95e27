// Goal: an error says what a user of epd.jax can type, what to do first, and each fact once.
#include "client/jax/api_words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace epd::jax {
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

TEST(ApiWordsTest, TokensAreThoseThatWerePassedToTheOperation) {
  CallConfig call;
  call.operation = Operation::kCombine;
  call.shards = 2;
  const std::string text = "num_tokens: got 5, handle_mem was prepared for 6";
  EXPECT_EQ(InApiWords(Code::kInvalidArgument, text, &call),
            "num_local_tokens is 10, but prepare was given 12 tokens for this handle_mem (5 and 6 "
            "of each of 2 ranks)");
  call.operation = Operation::kDispatch;
  call.shards = 1;
  EXPECT_EQ(
      InApiWords(Code::kInvalidArgument, text, &call),
      "the leading size of topk_idx is 5, but prepare was given 6 tokens for this handle_mem");
}

TEST(ApiWordsTest, TheRemedyComesFirstAndOnce) {
  const std::string once =
      InApiWords(Code::kAborted,
                 "[epd:ABORTED] group=a/b/0 epoch=3 rank=1 phase=announce: the worker ended; it is "
                 "being replaced: prepare again and repeat the step",
                 nullptr);
  EXPECT_EQ(
      once,
      "[epd:ABORTED] group=a/b/0 epoch=3 rank=1 phase=announce: call again: repeat the step on "
      "all ranks, from prepare on: the worker ended; it is being replaced");
  EXPECT_EQ(InApiWords(Code::kAborted, once, nullptr), once);
  EXPECT_THAT(InApiWords(Code::kUnavailable, "[epd:UNAVAILABLE] the socket is closed", nullptr),
              StartsWith("[epd:UNAVAILABLE] call again: "));
}

TEST(ApiWordsTest, ARankInAnotherFunctionSaysInWhich) {
  CallConfig call;
  call.program = "jit_evaluate";
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
}  // namespace epd::jax
