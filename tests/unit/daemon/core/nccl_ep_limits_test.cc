// Goal: what NCCL EP cannot do is refused before a group forms, with the limit, what was got, and what to
// ask for instead; other backends know nothing of its limits.
#include "daemon/core/nccl_ep_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace epd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

GroupSpec Good() {
  GroupSpec spec;
  spec.name = "moe";
  spec.num_ranks = 4;
  spec.num_experts = 8;
  spec.max_tokens_per_rank = 500;
  spec.recv_capacity_per_rank = 100;
  spec.hidden = 8;
  spec.top_k = 4;
  spec.max_token_dtype = Dtype::kBfloat16;
  spec.executor = Executor::kWorker;
  spec.backend = "nccl_ep";
  return spec;
}

TEST(NcclEpLimitsTest, WhatItCanDoIsAccepted) {
  EXPECT_EQ(CheckNcclEpLimits(Good()), absl::OkStatus());
  EXPECT_EQ(Validate(Good()), absl::OkStatus());
}

TEST(NcclEpLimitsTest, EachLimitIsNamedWithWhatWasGotAndWhatToAskFor) {
  const struct {
    const char* text;
    std::function<void(GroupSpec&)> exceed;
  } cases[] = {
      {"executor is client", [](GroupSpec& s) { s.executor = Executor::kClient; }},
      {"expert_owner is a table",
       [](GroupSpec& s) { s.expert_owner = std::vector<Rank>(8, Rank{0}); }},
      {"num_experts is 10, but with backend=nccl_ep NCCL EP's limit is a multiple of num_ranks=4",
       [](GroupSpec& s) { s.num_experts = 10; }},
      {"1024 experts per rank", [](GroupSpec& s) { s.num_experts = 4 * 1028; }},
      {"a multiple of 4",
       [](GroupSpec& s) {
         s.num_ranks = 3;
         s.num_experts = 9;
       }},
      {"max_token_dtype is float32", [](GroupSpec& s) { s.max_token_dtype = Dtype::kFloat32; }},
      {"hidden is 12", [](GroupSpec& s) { s.hidden = 12; }},
      {"hidden is 16392", [](GroupSpec& s) { s.hidden = 16392; }},
      {"top_k is 0", [](GroupSpec& s) { s.top_k = 0; }},
      {"top_k is 9", [](GroupSpec& s) { s.top_k = 9; }},
  };
  for (const auto& one : cases) {
    GroupSpec spec = Good();
    one.exceed(spec);
    const absl::Status refused = CheckNcclEpLimits(spec);
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << one.text;
    EXPECT_THAT(refused.message(), AllOf(HasSubstr("group=moe"), HasSubstr(one.text),
                                         HasSubstr("or ask for backend=cuda")));
    spec.backend = "cuda";
    EXPECT_EQ(CheckNcclEpLimits(spec), absl::OkStatus());
  }
}

}  // namespace
}  // namespace epd
