// Goal: what NCCL EP cannot do is refused before a group forms, with the limit, what was got, and what to
// ask for instead; other backends know nothing of its limits.
#include "daemon/core/nccl_ep_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

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
      {"256 experts per rank", [](GroupSpec& s) { s.num_experts = 4 * 260; }},
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

// "aab": ranks 0 and 1 on one node, rank 2 on another.
std::vector<NodeId> On(const std::string& nodes) {
  std::vector<NodeId> on;
  for (const char node : nodes) on.push_back({std::string(1, node)});
  return on;
}

TEST(NcclEpLimitsTest, TeamsAreAsLargeAsDividesAllRunsOfRanksOnANode) {
  const struct {
    const char* nodes;
    uint32_t team;
  } cases[] = {{"aa", 2},    {"ab", 1},     {"aabb", 2},   {"abab", 1},
               {"aabbb", 1}, {"aaaabb", 2}, {"aaabbb", 3}, {"aabbaa", 2}};
  for (const auto& one : cases) EXPECT_EQ(NcclEpTeamRanks(On(one.nodes)), one.team) << one.nodes;
}

TEST(NcclEpLimitsTest, ItServesSixtyFourRanksEightOfEachNode) {
  GroupSpec spec = Good();
  spec.num_ranks = 64;
  spec.num_experts = 256;
  EXPECT_EQ(CheckServed(spec), absl::OkStatus());
  const std::string full = "aaaaaaaabbbbbbbb";
  EXPECT_EQ(CheckNcclEpTeams(spec, On(full)), absl::OkStatus());
  const absl::Status crowded = CheckNcclEpTeams(spec, On("aaaaaaaaabbbbbbb"));
  EXPECT_EQ(crowded.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(crowded.message(),
              AllOf(HasSubstr("group=moe: 9 ranks are on one node"), HasSubstr("limit is 8"),
                    HasSubstr("or ask for backend=cuda")));
  // Also where its ranks do not follow each other.
  EXPECT_FALSE(CheckNcclEpTeams(spec, On("abababababababababab")).ok());
  spec.num_ranks = 65;
  spec.num_experts = 260;
  const absl::Status refused = CheckServed(spec);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), AllOf(HasSubstr("num_ranks is 65"), HasSubstr("limit is 64"),
                                       HasSubstr("or ask for backend=cuda")));
  spec.backend = "cuda";
  EXPECT_EQ(CheckServed(spec), absl::OkStatus());
  EXPECT_EQ(CheckNcclEpTeams(spec, On(std::string(9, 'a'))), absl::OkStatus());
}

TEST(NcclEpLimitsTest, EachTeamHasAMultipleOfFourExperts) {
  const auto check = [](uint32_t num_experts, const std::string& nodes) {
    GroupSpec spec = Good();
    spec.num_experts = num_experts;
    spec.num_ranks = static_cast<uint32_t>(nodes.size());
    return CheckNcclEpTeams(spec, On(nodes));
  };
  EXPECT_EQ(check(4, "aa"), absl::OkStatus());
  EXPECT_EQ(check(8, "ab"), absl::OkStatus());
  EXPECT_EQ(check(8, "aabb"), absl::OkStatus());
  EXPECT_EQ(check(6, "aaaabb").code(), absl::StatusCode::kFailedPrecondition)
      << "a node's four ranks are two teams where another node has two";
  EXPECT_EQ(check(8, "abab").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(check(4, "ab").message(),
              AllOf(HasSubstr("group=moe"), HasSubstr("teams of 1, which have 2 of the 4 experts"),
                    HasSubstr("a multiple of 4"), HasSubstr("or ask for backend=cuda")));
  GroupSpec on_cuda = Good();
  on_cuda.backend = "cuda";
  on_cuda.num_experts = on_cuda.num_ranks;
  EXPECT_EQ(CheckNcclEpTeams(on_cuda, On("abcd")), absl::OkStatus());
}

}  // namespace
}  // namespace epd
