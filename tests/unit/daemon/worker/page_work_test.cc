// Goal: pages are made and given back a little at a time, in an order that keeps the pool's budget and gives each set its turn.
#include "daemon/worker/shell/page_work.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "daemon/worker/staging/staging.h"

namespace epd {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kPiece = 8 * kPage;
constexpr uint64_t kPlenty = uint64_t{1} << 40;
using Kind = PageWork::Kind;

ArenaSetId SetOf(uint64_t id) { return ArenaSetId(id); }
CommitPages Pages(uint64_t operation, uint64_t set, uint64_t first, uint64_t num,
                  std::vector<Trim> trims = {}) {
  return {.operation = OperationId(operation),
          .range = {SetOf(set), first * kPage, num * kPage},
          .trims = std::move(trims)};
}

TEST(PageWorkTest, APieceIsMuchTheSameMemoryHoweverManyArenasThereAre) {
  PageWork work(kPlenty, kPiece, kPage);
  const std::map<int, uint64_t> pages_of = {{1, 8}, {2, 4}, {8, 4}, {64, 4}, {240, 1}};
  for (const auto& [num_arenas, pages] : pages_of) {
    const ArenaSetId set(static_cast<uint64_t>(num_arenas));
    work.Add(set, num_arenas);
    work.Commit(Pages(1, set.value, 0, 100));
    while (!work.empty()) {
      const std::optional<PageWork::Piece> piece = work.Next();
      ASSERT_TRUE(piece.has_value());
      EXPECT_EQ(piece->range.bytes, std::min(pages, 100 - piece->range.offset / kPage) * kPage);
      work.Done(*piece, absl::OkStatus());
    }
  }
}

// The number of pieces until the operation's pages are there.
int PiecesUntil(PageWork& work, OperationId operation) {
  for (int n = 1; n < 100'000 && !work.empty(); ++n) {
    const std::optional<PageWork::Piece> piece = work.Next();
    const std::optional<PageWork::Made> made = work.Done(*piece, absl::OkStatus());
    if (made.has_value() && made->operation == operation) return n;
  }
  return -1;
}

TEST(PageWorkTest, ASmallOperationDoesNotWaitForALargeOneOfAnotherSet) {
  PageWork work(kPlenty, kPiece, kPage);
  for (uint64_t set : {1, 2, 3}) work.Add(SetOf(set), 1);
  work.Commit(Pages(1, 1, 0, 100'000));
  work.Commit(Pages(2, 2, 0, 100'000));
  work.Commit(Pages(3, 3, 0, 2));
  EXPECT_EQ(PiecesUntil(work, OperationId(3)), 3);
}

TEST(PageWorkTest, AndNotForWhatIsGivenBackAfterIt) {
  PageWork work(kPlenty, kPiece, kPage);
  for (uint64_t set : {1, 2, 3}) work.Add(SetOf(set), 1);
  work.Commit(Pages(1, 1, 0, 1000));
  ASSERT_GT(PiecesUntil(work, OperationId(1)), 0);
  work.Commit(Pages(2, 2, 0, 16));
  work.Commit(Pages(3, 3, 0, 1000, {{SetOf(1), 0, 1000 * kPage}}));
  EXPECT_LE(PiecesUntil(work, OperationId(2)), 6);
}

TEST(PageWorkTest, WhatCannotBeMadeEndsItsOperationAndNotTheNextOne) {
  PageWork work(kPlenty, kPiece, kPage);
  work.Add(SetOf(1), 1);
  work.Commit(Pages(1, 1, 0, 16));
  work.Commit(Pages(2, 1, 0, 20));
  ASSERT_FALSE(work.Done(*work.Next(), absl::OkStatus()).has_value());
  const std::optional<PageWork::Made> failed =
      work.Done(*work.Next(), absl::ResourceExhaustedError("none"));
  ASSERT_TRUE(failed.has_value());
  EXPECT_EQ(failed->operation, OperationId(1));
  EXPECT_EQ(failed->status.message(), "none");
  EXPECT_EQ(work.Next()->range.offset, 8 * kPage) << "what is there already is not made again";
  EXPECT_EQ(PiecesUntil(work, OperationId(2)), 2);
}

// Pieces until an operation of two pages has its own, where another set gives 100 pages back before.
int PiecesUntilTwoPagesBehind100(uint64_t budget_pages) {
  PageWork work(budget_pages * kPage, kPiece, kPage);
  for (uint64_t set : {1, 2, 3}) work.Add(SetOf(set), 1);
  work.Commit(Pages(1, 1, 0, 100));
  EXPECT_GT(PiecesUntil(work, OperationId(1)), 0);
  work.Commit(Pages(2, 2, 0, 90, {{SetOf(1), 0, 100 * kPage}}));
  work.Commit(Pages(3, 3, 0, 2));
  return PiecesUntil(work, OperationId(3));
}

TEST(PageWorkTest, WhatIsGivenBackIsWaitedForWhereThereIsNoRoomBefore) {
  EXPECT_LE(PiecesUntilTwoPagesBehind100(102), 4);
  EXPECT_GT(PiecesUntilTwoPagesBehind100(92), 4);
}

TEST(PageWorkTest, ASetIsDroppedOnceItsPagesAreBackAndOthersAreMadeMeanwhileInTheirRoom) {
  PageWork work(20 * kPage, kPiece, kPage);
  for (uint64_t set : {1, 2}) work.Add(SetOf(set), 1);
  work.Commit(Pages(1, 1, 0, 20));
  ASSERT_GT(PiecesUntil(work, OperationId(1)), 0);
  work.Drop(SetOf(1));
  work.Commit(Pages(2, 2, 0, 1));
  std::vector<Kind> kinds;
  while (!work.empty()) {
    const std::optional<PageWork::Piece> piece = work.Next();
    kinds.push_back(piece->kind);
    work.Done(*piece, absl::OkStatus());
  }
  EXPECT_EQ(kinds, (std::vector<Kind>{Kind::kEndMeetings, Kind::kGiveBack, Kind::kMake,
                                      Kind::kGiveBack, Kind::kGiveBack, Kind::kDrop}));
}

// Tenants that come and go over one pool, with the machine's memory in a model.
class Machine {
 public:
  explicit Machine(uint64_t seed) : random_(seed) {}

  void Run() {
    for (int step = 0; step < 2000 && !::testing::Test::HasFailure(); ++step) {
      switch (Roll(8)) {
        case 0:
          Acquire();
          break;
        case 1:
        case 2:
          Ask();
          break;
        case 3:
          EndOne();
          break;
        case 4:
          if (Roll(10) == 0) Release();
          break;
        default:
          Work();
      }
    }
    while (!work_.empty() && !::testing::Test::HasFailure()) Work();
    EXPECT_TRUE(waiting_.empty()) << "operations whose pages nobody makes";
  }

 private:
  uint64_t Roll(uint64_t sides) { return random_() % sides; }

  void Acquire() {
    if (sets_.size() >= 4) return;
    const int num_arenas = static_cast<int>(1 + Roll(3));
    ArenaSetKey key;
    for (int i = 0; i < num_arenas; ++i) key.emplace_back(SessionId(++num_sessions_), 0);
    const auto lease = staging_.Acquire(key);
    ASSERT_TRUE(lease.ok());
    sets_[lease->set] = num_arenas;
    work_.Add(lease->set, num_arenas);
    num_arenas_[lease->set] = num_arenas;
  }
  void Ask() {
    if (sets_.empty()) return;
    const auto set = std::next(sets_.begin(), static_cast<int64_t>(Roll(sets_.size())));
    const auto grant = staging_.Allocate(set->first, (1 + Roll(60)) * kPage);
    if (!grant.ok()) return;
    const OperationId id(++num_operations_);
    regions_[id] = grant->region;
    if (grant->commit.bytes == 0) return CheckThere(grant->region);
    waiting_.insert(id);
    work_.Commit({.operation = id, .range = grant->commit, .trims = grant->trims});
  }
  // Those whose pages are still made stay.
  void EndOne() {
    for (const auto& [id, region] : regions_) {
      if (waiting_.contains(id) || Roll(2) == 0) continue;
      staging_.Free(region);
      regions_.erase(id);
      return;
    }
  }
  void Release() {
    for (const auto& [set, unused] : sets_) {
      bool used = false;
      for (const auto& [id, region] : regions_) used |= region.set == set;
      if (used) continue;
      const auto dropped = staging_.Release(set);
      ASSERT_EQ(dropped, std::vector<ArenaSetId>{set});
      work_.Drop(set);
      sets_.erase(set);
      return;
    }
  }
  void Work() {
    const std::optional<PageWork::Piece> piece = work_.Next();
    ASSERT_EQ(piece.has_value(), !work_.empty());
    if (!piece.has_value()) return;
    const Region& range = piece->range;
    const bool fails = piece->kind == Kind::kMake && Roll(50) == 0;
    std::set<uint64_t>& pages = memory_[range.set];
    for (uint64_t at = range.offset; at < range.offset + range.bytes && !fails; at += kPage) {
      if (piece->kind == Kind::kMake) pages.insert(at);
      if (piece->kind != Kind::kMake) pages.erase(at);
    }
    if (piece->kind == Kind::kDrop) {
      EXPECT_TRUE(pages.empty()) << "pages that nobody gives back";
      memory_.erase(range.set);
    }
    const std::optional<PageWork::Made> made =
        work_.Done(*piece, fails ? absl::ResourceExhaustedError("none") : absl::OkStatus());
    uint64_t in_use = 0;
    for (const auto& [set, there] : memory_)
      in_use += there.size() * kPage * static_cast<uint64_t>(num_arenas_.at(set));
    ASSERT_LE(in_use, kBudget);
    if (made.has_value()) Ended(*made);
    for (const auto& [id, region] : regions_) {
      if (!waiting_.contains(id)) CheckThere(region);
    }
  }
  void Ended(const PageWork::Made& made) {
    ASSERT_EQ(waiting_.erase(made.operation), 1u);
    const Region region = regions_.at(made.operation);
    if (made.status.ok()) return staging_.Committed(region.set, region.offset + region.bytes);
    staging_.Free(region);
    regions_.erase(made.operation);
  }
  void CheckThere(const Region& region) {
    for (uint64_t at = region.offset; at < region.offset + region.bytes; at += kPage)
      ASSERT_TRUE(memory_[region.set].contains(at)) << "a page of an operation is not there";
  }

  static constexpr uint64_t kBudget = 200 * kPage;
  std::mt19937_64 random_;
  Staging staging_{kBudget, kPage};
  PageWork work_{kBudget, kPiece, kPage};
  std::map<ArenaSetId, int> sets_;
  std::map<ArenaSetId, int> num_arenas_;
  std::map<ArenaSetId, std::set<uint64_t>> memory_;  // Pages, the same in each arena.
  std::map<OperationId, Region> regions_;
  std::set<OperationId> waiting_;
  uint64_t num_sessions_ = 0;
  uint64_t num_operations_ = 0;
};

TEST(PageWorkTest, NoMoreMemoryThanTheBudgetAndNoPageOfAnOperationAway) {
  for (uint64_t seed = 0; seed < 300 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Machine(seed).Run();
  }
}

}  // namespace
}  // namespace epd
