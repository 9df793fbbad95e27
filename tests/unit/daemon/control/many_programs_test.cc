// Goal: what sessions say of their programs costs no more than the message that starts their group carries, and whose
// programs fit into it goes on as ever.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tests/unit/daemon/control/small_cluster.h"

namespace epd {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::SizeIs;

constexpr size_t kMost = 12000;  // Counts of a record, and bases of a formation.

ProgramId Numbered(size_t number) {
  ProgramId program{};
  for (size_t i = 0; i < sizeof number; ++i) program[i] = static_cast<uint8_t>(number >> 8 * i);
  return program;
}

// Program `first` + i on rank i modulo `num_ranks`.
std::vector<ExecutionCount> Counts(size_t first, size_t num, uint32_t num_ranks = 1) {
  std::vector<ExecutionCount> counts;
  for (size_t i = 0; i < num; ++i)
    counts.push_back({Rank(static_cast<uint32_t>(i % num_ranks)), Numbered(first + i), 1});
  return counts;
}

std::vector<ExecutionCount> Of(Rank rank, std::vector<ExecutionCount> counts) {
  for (ExecutionCount& count : counts) count.rank = rank;
  return counts;
}

// Session 1 on node 0 has all ranks but the last, session 2 on node 1 that one.
struct Large : SmallCluster {
  explicit Large(uint32_t ranks) : SmallCluster(2), spec(SmallSpec(ranks)) {
    std::vector<uint32_t> most(ranks - 1);
    std::iota(most.begin(), most.end(), 0);
    AttachAndJoin(0, 1, spec, most);
    AttachAndJoin(1, 2, spec, {ranks - 1});
  }
  void Replace() { AttachAndJoin(1, 3, spec, {spec.num_ranks - 1}); }

  GroupSpec spec;
};

TEST(ManyProgramsTest, ASessionThatCountsMoreThanAStartCarriesIsEndedAndItsRecordStays) {
  Pair c;
  c.Gone(1, 2);
  size_t most_reported = 0;
  for (size_t i = 0; i < 8; ++i) {
    c.Drained(0, 1, Counts(8000 * i, 8000));
    most_reported = std::max(most_reported, c.last_report.claims.at(0).drained->counts.size());
    EXPECT_EQ(c.told_to_end.contains(1), i > 0) << i;
  }
  EXPECT_LE(most_reported, kMost);
}

TEST(ManyProgramsTest, ACutThatNoStartCarriesEndsTheGroupBeforeItIsMade) {
  Large c(256);
  ASSERT_EQ(c.Group().state, GroupState::kReady);
  c.Gone(1, 2);
  c.Drained(0, 1, Counts(0, 8000, 255));
  c.Replace();
  ASSERT_THAT(c.group_ended[1], SizeIs(1));
  EXPECT_TRUE(absl::IsResourceExhausted(c.group_ended[1][0]));
  EXPECT_THAT(c.group_ended[1][0].ToString(),
              AllOf(HasSubstr("group=moe epoch=1"), HasSubstr("255 ranks"),
                    HasSubstr("at most 12000"), HasSubstr("let them run fewer programs")));
  ASSERT_THAT(c.failed[3], SizeIs(1));
  EXPECT_THAT(c.nodes[0].started, SizeIs(1)) << "only the first formation";
  EXPECT_TRUE(c.coordinator->Groups().empty());
}

TEST(ManyProgramsTest, ALateCountThatNoStartCarriesEndsTheGroupThatServes) {
  Large c(256);
  c.Gone(1, 2);
  c.Drained(0, 1, Counts(0, 40, 255));
  c.Replace();
  ASSERT_EQ(c.Group().state, GroupState::kReady);
  EXPECT_THAT(c.nodes[0].started.back().bases, SizeIs(40 * 255));
  c.Give(0, SessionDrained{SessionId{1}, c.joined[1].back().group, Formation{1},
                           Counts(0, 8000, 255)});
  ASSERT_THAT(c.group_ended[1], SizeIs(1));
  EXPECT_TRUE(absl::IsResourceExhausted(c.group_ended[1][0]));
  EXPECT_THAT(c.nodes[0].started, SizeIs(2));
}

TEST(ManyProgramsTest, WhatAStartCarriesGoesOn) {
  Pair c;
  const auto drain = [&](size_t num) {
    c.Give(0, TenantBroken{c.RunOf(0, kCpuWorker), c.Group().id, c.Group().formation,
                           absl::UnavailableError("the stream to node n1 is lost")});
    c.Drained(0, 1, Of(Rank{0}, Counts(0, num)));
    c.Drained(1, 2, Of(Rank{1}, Counts(0, kMost / 2)));
    c.Pass(absl::Seconds(10));
  };
  drain(kMost / 2);
  ASSERT_EQ(c.Group().state, GroupState::kReady);
  EXPECT_THAT(c.nodes[0].started.back().bases, SizeIs(kMost));
  drain(kMost / 2 + 1);
  ASSERT_THAT(c.group_ended[1], SizeIs(1));
  EXPECT_TRUE(absl::IsResourceExhausted(c.group_ended[1][0]));
}

}  // namespace
}  // namespace epd
