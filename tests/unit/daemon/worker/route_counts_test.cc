// Goal: figures of routes are exact for groups as people run them, and however large a group is, counting for it holds nobody
// up: then they are estimates that say so.
#include "daemon/worker/shell/route_counts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>

#include "proto/epd/v1/route_counts.h"
#include "tests/seed/seed.h"

namespace epd {
namespace {

using ::testing::ElementsAre;

constexpr uint64_t kStage = 64;  // Where the counts stand in each arena.

// Arenas of ranks that staged `count(arena, expert)`.
class StagedCounts : public ArenaSet {
 public:
  using CountOf = std::function<int32_t(int arena, uint32_t expert)>;
  StagedCounts(int num_arenas, CountOf count) : num_arenas_(num_arenas), count_(std::move(count)) {}

  int num_arenas() const override { return num_arenas_; }
  uint64_t arena_bytes() const override { return uint64_t{1} << 30; }
  absl::StatusOr<ArenaShare> Share(int) override { return absl::UnimplementedError(""); }
  absl::Status Read(int arena, uint64_t offset, absl::Span<char> out) const override {
    bytes_read_ += out.size();
    ++num_reads_;
    const auto first = static_cast<uint32_t>((offset - kStage) / sizeof(int32_t));
    for (uint32_t i = 0; i < out.size() / sizeof(int32_t); ++i) {
      const int32_t count = count_(arena, first + i);
      std::memcpy(&out[i * sizeof count], &count, sizeof count);
    }
    return absl::OkStatus();
  }
  absl::StatusOr<char*> Map(int) override { return absl::UnimplementedError(""); }

  uint64_t bytes_read() const { return bytes_read_; }
  uint64_t num_reads() const { return num_reads_; }

 private:
  const int num_arenas_;
  const CountOf count_;
  mutable uint64_t bytes_read_ = 0;
  mutable uint64_t num_reads_ = 0;
};

GroupSpec Spec(uint32_t num_ranks, uint32_t num_experts) {
  GroupSpec spec;
  spec.num_ranks = num_ranks;
  spec.num_experts = num_experts;
  return spec;
}

// Of a group whose ranks are all here, or as many of them.
CountRoutes Prepare(const GroupSpec& spec, uint32_t num_here, uint32_t alignment = 1) {
  CountRoutes prepare{.group = {},
                      .formation = {},
                      .uid = 1000,
                      .set = {},
                      .offsets = std::vector<uint64_t>(spec.num_ranks, kStage),
                      .arena_of_rank = std::vector<int>(spec.num_ranks, -1),
                      .num_experts = spec.num_experts,
                      .alignment = alignment};
  std::iota(prepare.arena_of_rank.begin(), prepare.arena_of_rank.begin() + num_here, 0);
  return prepare;
}

uint64_t Sum(const std::vector<uint64_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), uint64_t{0});
}

// The largest group that one worker serves all of, with the most experts that divide by its ranks.
constexpr uint32_t kManyRanks = 240;
constexpr uint32_t kManyExperts = 65'520;
constexpr uint64_t kOthersWaitFor = uint64_t{4} << 20;  // Bytes of counts: one to two ms.

class RouteCountsTest : public ::testing::Test {
 protected:
  RouteCounter counter_;
  Routes routes_;
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(RouteCountsTest, OfALargePrepareNoMoreIsReadThanOthersCanWaitFor) {
  const GroupSpec spec = Spec(kManyRanks, kManyExperts);
  const StagedCounts staged(kManyRanks, [](int, uint32_t) { return 1; });
  counter_.Count(Prepare(spec, kManyRanks), spec, staged, now_, routes_);
  EXPECT_LE(staged.bytes_read(), kOthersWaitFor);
  EXPECT_EQ(routes_.num_estimated, 1u);
}

// Where the counts are in device memory: what the ranks have told, of one slice of the experts where there are many.
TEST_F(RouteCountsTest, WhatRanksHaveToldIsCountedAndNothingIsRead) {
  const StagedCounts staged(2, [](int, uint32_t) { return -1; });
  const GroupSpec few = Spec(2, 4);
  CountRoutes prepare = Prepare(few, 2, /*alignment=*/8);
  prepare.told = {{1, 2, 3, 4}, {10, 0, 0, 65535}};
  counter_.Count(prepare, few, staged, now_, routes_);
  EXPECT_EQ(routes_.of_expert, (std::vector<uint64_t>{11, 2, 3, 65539}));
  EXPECT_EQ(routes_.between_ranks, (std::vector<uint64_t>{3, 7, 10, 65535}));
  EXPECT_EQ(routes_.padded_rows, 5u + 6 + 5 + 5);
  EXPECT_EQ(routes_.num_estimated, 0u);

  routes_ = {};
  const uint32_t many = 3 * shm::kMaxRouteCounts - 1;
  const GroupSpec spec = Spec(2, many);
  prepare = Prepare(spec, 2);
  prepare.told.assign(2, std::vector<uint16_t>(shm::kMaxRouteCounts, 1));
  for (prepare.plan_id = 1; prepare.plan_id <= 300; ++prepare.plan_id)
    counter_.Count(prepare, spec, staged, now_, routes_);
  EXPECT_EQ(routes_.num_estimated, 300u);
  for (const uint64_t routes : routes_.of_expert)
    EXPECT_NEAR(static_cast<double>(routes), 600, 150);
  EXPECT_EQ(staged.bytes_read(), 0u);
}

TEST_F(RouteCountsTest, ManyPreparesOfOneTurnTakeNoLonger) {
  const GroupSpec spec = Spec(2, kManyExperts);
  const StagedCounts staged(2, [](int, uint32_t) { return 1; });
  std::vector<Routes> of_group(256);  // Of 512 submissions, which a turn takes.
  for (Routes& routes : of_group) counter_.Count(Prepare(spec, 2), spec, staged, now_, routes);
  EXPECT_LE(staged.bytes_read(), kOthersWaitFor);
  const uint64_t before = staged.bytes_read();
  CountRoutes other_uid = Prepare(spec, 2);
  other_uid.uid = 1001;
  counter_.Count(other_uid, spec, staged, now_, routes_);
  EXPECT_EQ(staged.bytes_read() - before, 2 * kManyExperts * sizeof(int32_t));
  EXPECT_EQ(routes_.num_estimated, 0u) << "another user's figures stay exact";
}

TEST_F(RouteCountsTest, ThousandsOfPreparesASecondAreCountedExactly) {
  constexpr uint32_t kRanks = 64;
  constexpr uint32_t kExperts = 1024;
  constexpr int kPrepares = 3000;
  const GroupSpec spec = Spec(kRanks, kExperts);
  const StagedCounts staged(
      kRanks, [](int arena, uint32_t e) { return static_cast<int32_t>(arena + e % 3); });
  for (int i = 0; i < kPrepares; ++i) {
    now_ += absl::Seconds(1) / kPrepares;
    counter_.Count(Prepare(spec, kRanks, 128), spec, staged, now_, routes_);
  }
  EXPECT_EQ(routes_.num_estimated, 0u);
  EXPECT_EQ(routes_.num_prepares, uint64_t{kPrepares});
  const uint64_t of_expert_1 = kRanks * (kRanks - 1) / 2 + kRanks;
  EXPECT_EQ(routes_.of_expert[1], kPrepares * of_expert_1);
  // Experts 16 to 31 are of rank 1: 5 of them are 0 and 6 are 1, 5 are 2 above the sender's number.
  EXPECT_EQ(routes_.between_ranks[3 * kRanks + 1], kPrepares * (16u * 3 + 16));
}

TEST_F(RouteCountsTest, EstimatesComeNearTheTruthWhateverTheOrderOfPrepares) {
  constexpr int kPrepares = 300;
  const GroupSpec spec = Spec(kManyRanks, kManyExperts);
  // Two layers in turn; the second one uses twice as many of the first half of the experts.
  const StagedCounts first(kManyRanks, [](int, uint32_t) { return 1; });
  const StagedCounts second(kManyRanks,
                            [](int, uint32_t e) { return e < kManyExperts / 2 ? 2 : 1; });
  for (int i = 0; i < kPrepares; ++i) {
    now_ += absl::Milliseconds(50);
    counter_.Count(Prepare(spec, kManyRanks, 512), spec, i % 2 == 0 ? first : second, now_,
                   routes_);
  }
  EXPECT_EQ(routes_.num_estimated, uint64_t{kPrepares});
  const double all = 1.25 * kPrepares * kManyRanks * kManyExperts;
  EXPECT_NEAR(static_cast<double>(Sum(routes_.of_expert)) / all, 1, 0.05);
  EXPECT_NEAR(static_cast<double>(Sum(routes_.between_ranks)) / all, 1, 0.05);
  // 240 rows of an expert, or 480, in a zone of 512.
  const double padding = kPrepares * kManyExperts * (0.75 * 272 + 0.25 * 32);
  EXPECT_NEAR(static_cast<double>(routes_.padded_rows) / padding, 1, 0.05);
}

TEST_F(RouteCountsTest, WhatClientsStageWrapsNoFigure) {
  const GroupSpec spec = Spec(2, 2);
  const StagedCounts staged(2, [](int arena, uint32_t e) {
    return arena == 0 ? INT32_MIN : e == 0 ? INT32_MAX : 3;
  });
  counter_.Count(Prepare(spec, 2), spec, staged, now_, routes_);
  EXPECT_THAT(routes_.of_expert, ElementsAre(INT32_MAX, 3));
  EXPECT_THAT(routes_.between_ranks, ElementsAre(0, 0, INT32_MAX, 3));
}

TEST_F(RouteCountsTest, PreparesWithoutTheWorkerCountAsThoseWithItDo) {
  GroupSpec spec = Spec(3, 4);
  spec.expert_owner = std::vector{Rank(2), Rank(0), Rank(2), Rank(1)};
  const std::array<std::array<uint16_t, 4>, 3> counts = {
      {{5, 0, 1, 2}, {0, 0, 7, 1}, {3, 4, 0, 0}}};
  const uint32_t alignment = 4;
  StagedCounts arenas(3,
                      [&](int arena, uint32_t e) { return counts[static_cast<size_t>(arena)][e]; });
  Routes by_worker;
  counter_.Count(Prepare(spec, 3, alignment), spec, arenas, now_, by_worker);
  Routes direct;
  const std::array<uint32_t, 3> padded = {0, 1, 0};  // Zones of 8, 4, 8 and 3 rows.
  for (uint32_t rank = 0; rank < 3; ++rank) {
    DirectOutcome outcome;
    outcome.rank = Rank(rank);
    outcome.ended = true;
    outcome.routes.assign(counts[rank].begin(), counts[rank].end());
    outcome.padded_rows = padded[rank];
    RouteCounter::Count(outcome, spec, direct);
  }
  EXPECT_EQ(direct.of_expert, by_worker.of_expert);
  EXPECT_EQ(direct.between_ranks, by_worker.between_ranks);
  EXPECT_EQ(direct.padded_rows, by_worker.padded_rows);
  EXPECT_EQ(direct.num_prepares, 1u);
  EXPECT_EQ(direct.num_estimated, 0u);
}

TEST_F(RouteCountsTest, OfAPrepareThatIsNotOverOrOfAnotherSizeNothingCounts) {
  const GroupSpec spec = Spec(2, 2);
  DirectOutcome outcome;
  outcome.routes = {1, 2};
  Routes routes;
  RouteCounter::Count(outcome, spec, routes);  // Not over.
  outcome.ended = true;
  outcome.rank = Rank(2);
  RouteCounter::Count(outcome, spec, routes);
  outcome.rank = Rank(1);
  outcome.routes = {1, 2, 3};
  RouteCounter::Count(outcome, spec, routes);
  EXPECT_THAT(routes.of_expert, ::testing::IsEmpty());
  EXPECT_EQ(routes.num_prepares, 0u);
}

TEST_F(RouteCountsTest, RanksOfAnotherWorkerCountOnlyWhereTheyPadZonesHere) {
  const GroupSpec spec = Spec(2, 2);
  const StagedCounts staged(2, [](int arena, uint32_t) { return arena == 0 ? 5 : 2; });
  counter_.Count(Prepare(spec, 1, 8), spec, staged, now_, routes_);
  EXPECT_THAT(routes_.of_expert, ElementsAre(5, 5));
  EXPECT_THAT(routes_.between_ranks, ElementsAre(5, 5, 0, 0));
  EXPECT_EQ(routes_.padded_rows, 1u);
}

TEST_F(RouteCountsTest, ExpertsThatLieAnyhowAreTheirOwnersAll) {
  GroupSpec spec = Spec(3, 7);
  std::mt19937 random(testing::TestSeed());
  std::vector<Rank> owners(spec.num_experts);
  for (Rank& owner : owners) owner = Rank(random() % 3);
  spec.expert_owner = owners;
  const StagedCounts staged(
      3, [](int arena, uint32_t e) { return static_cast<int32_t>(10 * arena + e); });
  counter_.Count(Prepare(spec, 3, 16), spec, staged, now_, routes_);
  std::vector<uint64_t> between(9);
  uint64_t padded = 0;
  for (uint32_t e = 0; e < spec.num_experts; ++e) {
    uint64_t rows = 0;
    for (uint32_t rank = 0; rank < 3; ++rank) {
      rows += 10 * rank + e;
      between[rank * 3 + spec.expert_owner[e].value] += 10 * rank + e;
    }
    EXPECT_EQ(routes_.of_expert[e], rows);
    padded += (16 - rows % 16) % 16;
  }
  EXPECT_EQ(routes_.between_ranks, between);
  EXPECT_EQ(routes_.padded_rows, padded);
}

}  // namespace
}  // namespace epd
