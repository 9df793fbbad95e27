// Goal: a spec that cannot be served is refused with the field, the value and what is allowed;
// specs that differ say in which fields.
#include "daemon/core/group_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "proto/epd/v1/limits.h"

namespace epd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

GroupSpec Good() {
  GroupSpec spec;
  spec.name = "moe";
  spec.num_ranks = 4;
  spec.num_experts = 8;
  spec.max_tokens_per_rank = 512;
  spec.recv_capacity_per_rank = 2560;
  spec.hidden = 2048;
  spec.top_k = 4;
  spec.max_token_dtype = Dtype::kBfloat16;
  spec.backend = "cpu";
  return spec;
}

TEST(GroupSpecTest, AGoodSpecIsAccepted) { EXPECT_TRUE(Validate(Good()).ok()) << Validate(Good()); }

TEST(GroupSpecTest, EveryBadFieldIsNamed) {
  const struct {
    const char* field;
    std::function<void(GroupSpec&)> spoil;
  } cases[] = {
      {"name", [](GroupSpec& s) { s.name.clear(); }},
      {"name", [](GroupSpec& s) { s.name = "two words"; }},
      {"name", [](GroupSpec& s) { s.name = std::string(201, 'a'); }},
      {"instance", [](GroupSpec& s) { s.instance = "\n"; }},
      {"tenant", [](GroupSpec& s) { s.tenant = "\x7f"; }},
      {"num_ranks", [](GroupSpec& s) { s.num_ranks = 0; }},
      {"num_ranks", [](GroupSpec& s) { s.num_ranks = limits::kGroupRanks + 1; }},
      {"num_experts", [](GroupSpec& s) { s.num_experts = 0; }},
      {"num_experts", [](GroupSpec& s) { s.num_experts = 6; }},
      {"expert_owner", [](GroupSpec& s) { s.expert_owner = {Rank{0}}; }},
      {"expert_owner[7]",
       [](GroupSpec& s) {
         s.expert_owner = {Rank{0}, Rank{0}, Rank{0}, Rank{0}, Rank{0}, Rank{0}, Rank{0}, Rank{4}};
       }},
      {"max_tokens_per_rank", [](GroupSpec& s) { s.max_tokens_per_rank = 0; }},
      {"recv_capacity_per_rank", [](GroupSpec& s) { s.recv_capacity_per_rank = 0; }},
      {"hidden", [](GroupSpec& s) { s.hidden = limits::kHidden + 1; }},
      {"top_k", [](GroupSpec& s) { s.top_k = limits::kTopK + 1; }},
      {"alignment", [](GroupSpec& s) { s.alignment = 0; }},
      {"max_token_dtype", [](GroupSpec& s) { s.max_token_dtype = Dtype::kUnspecified; }},
      {"backend", [](GroupSpec& s) { s.backend = "tpu"; }},
      {"executor",
       [](GroupSpec& s) {
         s.backend = "nccl_ep";
         s.executor = Executor::kClient;
       }},
      {"deadlines.warn_after", [](GroupSpec& s) { s.deadlines.warn_after = absl::ZeroDuration(); }},
      {"deadlines.absent", [](GroupSpec& s) { s.deadlines.absent = -absl::Seconds(1); }},
      {"deadlines.undecided", [](GroupSpec& s) { s.deadlines.undecided = absl::ZeroDuration(); }},
      {"deadlines.form", [](GroupSpec& s) { s.deadlines.form = absl::InfiniteDuration(); }},
  };
  for (const auto& one : cases) {
    GroupSpec spec = Good();
    one.spoil(spec);
    const absl::Status status = Validate(spec);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << one.field;
    EXPECT_THAT(std::string(status.message()), HasSubstr(one.field));
  }
}

TEST(GroupSpecTest, WhoWantsToMoveTheRowsOfNcclEpIsToldWhatToAskFor) {
  GroupSpec spec = Good();
  spec.backend = "nccl_ep";
  spec.executor = Executor::kClient;
  EXPECT_THAT(
      std::string(Validate(spec).message()),
      HasSubstr("executor is client with backend=nccl_ep, whose rows only the worker moves, "
                "expected worker"));
  spec.executor = Executor::kWorker;
  EXPECT_TRUE(Validate(spec).ok()) << Validate(spec);
  spec.backend = "cuda";
  spec.executor = Executor::kClient;
  EXPECT_TRUE(Validate(spec).ok()) << Validate(spec);
}

TEST(GroupSpecTest, ExpertsAreOwnedInBlocksOrByTable) {
  GroupSpec spec = Good();
  EXPECT_EQ(ExpertOwner(spec, 1), Rank{0});
  EXPECT_EQ(ExpertOwner(spec, 2), Rank{1});
  spec.expert_owner = std::vector<Rank>(8, Rank{3});
  EXPECT_TRUE(Validate(spec).ok());
  EXPECT_EQ(ExpertOwner(spec, 1), Rank{3});
}

TEST(GroupSpecTest, DifferencesNameEveryFieldWithBothValues) {
  const GroupSpec expected = Good();
  EXPECT_THAT(Differences(expected, expected), IsEmpty());
  GroupSpec got = expected;
  got.instance = "b";
  got.num_experts = 16;
  got.drop_on_overflow = true;
  got.executor = Executor::kWorker;
  got.deadlines.form = absl::Minutes(1);
  EXPECT_THAT(Differences(got, expected),
              ElementsAre(FieldDifference{"instance", "b", "\"\""},
                          FieldDifference{"num_experts", "16", "8"},
                          FieldDifference{"drop_on_overflow", "true", "false"},
                          FieldDifference{"executor", "worker", "default"},
                          FieldDifference{"deadlines.form", "1m", "5m"}));
}

TEST(GroupSpecTest, MoreRanksThanAWorkerServesAreRefusedWithTheLimit) {
  GroupSpec spec = Good();
  spec.num_ranks = limits::kServedRanks;
  EXPECT_TRUE(CheckServed(spec).ok());
  ++spec.num_ranks;
  const absl::Status refused = CheckServed(spec);
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("num_ranks: got 1025, expected at most 1024"));
  spec.backend = "cuda";
  EXPECT_THAT(std::string(CheckServed(spec).message()),
              HasSubstr("expected at most 125 with backend=cuda"));
}

TEST(GroupSpecTest, EqualSpecsAreThoseWithoutDifferences) {
  GroupSpec got = Good();
  got.expert_owner = std::vector<Rank>(8, Rank{0});
  EXPECT_FALSE(got == Good());
  EXPECT_THAT(Differences(got, Good()),
              ElementsAre(testing::Field(&FieldDifference::field, "expert_owner")));
}

}  // namespace
}  // namespace epd
