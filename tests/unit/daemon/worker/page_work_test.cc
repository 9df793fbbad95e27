// Goal: pages are made and given back a little at a time, in an order that keeps the pool's budget and gives each set its turn.
#include "daemon/worker/shell/page_work.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
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
constexpr PageBudget kPlenty = {.budget_bytes = uint64_t{1} << 40};
using Kind = PageWork::Kind;

ArenaSetId SetOf(uint64_t id) { return ArenaSetId(id); }
void Make(PageWork& work, uint64_t operation, uint64_t set, uint64_t first, uint64_t num) {
  work.Make(OperationId(operation), {SetOf(set), first * kPage, num * kPage});
}
void GiveBack(PageWork& work, uint64_t set, uint64_t num) {
  work.GiveBack({SetOf(set), 0, num * kPage});
}

TEST(PageWorkTest, APieceIsMuchTheSameMemoryHoweverManyArenasThereAre) {
  PageBudget budget = kPlenty;
  PageWork work(budget, kPiece, kPage);
  const std::map<int, uint64_t> pages_of = {{1, 8}, {2, 4}, {8, 1}, {64, 1}, {240, 1}};
  for (const auto& [num_arenas, pages] : pages_of) {
    const ArenaSetId set(static_cast<uint64_t>(num_arenas));
    work.Add(set, num_arenas);
    Make(work, 1, set.value, 0, 100);
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
  PageBudget budget = kPlenty;
  PageWork work(budget, kPiece, kPage);
  for (uint64_t set : {1, 2, 3}) work.Add(SetOf(set), 1);
  Make(work, 1, 1, 0, 100'000);
  Make(work, 2, 2, 0, 100'000);
  Make(work, 3, 3, 0, 2);
  EXPECT_EQ(PiecesUntil(work, OperationId(3)), 3);
}

TEST(PageWorkTest, AndNotForWhatIsGivenBackAfterIt) {
  PageBudget budget = kPlenty;
  PageWork work(budget, kPiece, kPage);
  for (uint64_t set : {1, 2, 3}) work.Add(SetOf(set), 1);
  Make(work, 1, 1, 0, 1000);
  ASSERT_GT(PiecesUntil(work, OperationId(1)), 0);
  Make(work, 2, 2, 0, 16);
  GiveBack(work, 1, 1000);
  Make(work, 3, 3, 0, 1000);
  EXPECT_LE(PiecesUntil(work, OperationId(2)), 6);
}

TEST(PageWorkTest, WhatCannotBeMadeEndsItsOperationAndNotTheNextOne) {
  PageBudget budget = kPlenty;
  PageWork work(budget, kPiece, kPage);
  work.Add(SetOf(1), 1);
  Make(work, 1, 1, 0, 16);
  Make(work, 2, 1, 0, 20);
  ASSERT_FALSE(work.Done(*work.Next(), absl::OkStatus()).has_value());
  const std::optional<PageWork::Made> failed =
      work.Done(*work.Next(), absl::ResourceExhaustedError("none"));
  ASSERT_TRUE(failed.has_value());
  EXPECT_EQ(failed->operation, OperationId(1));
  EXPECT_EQ(failed->status.message(), "none");
  EXPECT_EQ(work.Next()->range.offset, 8 * kPage) << "what is there already is not made again";
  EXPECT_EQ(PiecesUntil(work, OperationId(2)), 2);
}

TEST(PageWorkTest, WhatAnEndedOperationAskedForIsLeftOutAndTheNextGoesOn) {
  PageBudget budget = kPlenty;
  PageWork work(budget, kPiece, kPage);
  work.Add(SetOf(1), 1);
  Make(work, 1, 1, 0, 1000);
  Make(work, 2, 1, 0, 1000);
  Make(work, 3, 1, 0, 20);
  const std::optional<PageWork::Made> waits = work.Cancel(OperationId(2), SetOf(1));
  ASSERT_TRUE(waits.has_value());
  EXPECT_EQ(waits->operation, OperationId(2));
  EXPECT_TRUE(absl::IsCancelled(waits->status));
  const PageWork::Piece first = *work.Next();
  EXPECT_FALSE(work.Cancel(OperationId(1), SetOf(1)).has_value()) << "a piece of it is being made";
  const std::optional<PageWork::Made> ended = work.Done(first, absl::OkStatus());
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(ended->operation, OperationId(1));
  EXPECT_TRUE(absl::IsCancelled(ended->status));
  EXPECT_EQ(work.Next()->range.offset, 8 * kPage) << "what is there already is not made again";
  EXPECT_EQ(PiecesUntil(work, OperationId(3)), 2);
  EXPECT_TRUE(work.empty());
  EXPECT_FALSE(work.Cancel(OperationId(3), SetOf(1)).has_value());
}

TEST(PageWorkTest, WhatIsWholeWithThePieceUnderWayIsMade) {
  PageBudget budget = kPlenty;
  PageWork work(budget, kPiece, kPage);
  work.Add(SetOf(1), 1);
  Make(work, 1, 1, 0, 8);
  const PageWork::Piece piece = *work.Next();
  EXPECT_FALSE(work.Cancel(OperationId(1), SetOf(1)).has_value());
  EXPECT_TRUE(work.Done(piece, absl::OkStatus())->status.ok());
}

// Somebody keeps what he is to give back.
TEST(PageWorkTest, OneThatWaitsForRoomEndsAtOnceWhereItsOperationDoes) {
  PageBudget budget = {.budget_bytes = 100 * kPage};
  PageWork held(budget, kPiece, kPage);
  PageWork work(budget, kPiece, kPage);
  held.Add(SetOf(1), 1);
  Make(held, 1, 1, 0, 100);
  ASSERT_GT(PiecesUntil(held, OperationId(1)), 0);
  GiveBack(held, 1, 100);
  work.Add(SetOf(2), 1);
  Make(work, 2, 2, 0, 50);
  EXPECT_FALSE(work.Next().has_value());
  const std::optional<PageWork::Made> ended = work.Cancel(OperationId(2), SetOf(2));
  ASSERT_TRUE(ended.has_value());
  EXPECT_TRUE(absl::IsCancelled(ended->status));
  EXPECT_TRUE(work.empty());
  EXPECT_EQ(held.BytesNotBack(), 100 * kPage);
  held.Drop(SetOf(1));
  EXPECT_EQ(held.BytesNotBack(), 100 * kPage) << "each page once";
  const std::optional<PageWork::Piece> back = held.Next();
  held.Done(*back, absl::OkStatus());
  EXPECT_EQ(held.BytesNotBack(), 100 * kPage - back->range.bytes);
}

// Whatever the pool has room for: a user who keeps what he is to give back has no more than he may have.
TEST(PageWorkTest, AUserHasNoMoreThanHisMostWhileSomeOfItIsToBeGivenBack) {
  PageBudget budget = kPlenty;
  PageWork work(budget, kPiece, kPage, 100 * kPage);
  for (uint64_t set : {1, 2}) work.Add(SetOf(set), 1);
  Make(work, 1, 1, 0, 90);
  ASSERT_GT(PiecesUntil(work, OperationId(1)), 0);
  GiveBack(work, 1, 90);
  Make(work, 2, 2, 0, 100);
  std::optional<PageWork::Piece> piece = work.Next();
  uint64_t given_back = 0;
  for (; piece.has_value() && !work.empty(); piece = work.Next()) {
    EXPECT_LE(budget.present_bytes, 100 * kPage);
    if (piece->kind == Kind::kGiveBack) given_back += piece->range.bytes;
    work.Done(*piece, absl::OkStatus());
  }
  EXPECT_EQ(given_back, 90 * kPage);
  EXPECT_TRUE(work.empty());
}

// Pieces until an operation of two pages has its own, where another set gives 100 pages back before.
int PiecesUntilTwoPagesBehind100(uint64_t budget_pages) {
  PageBudget budget = {.budget_bytes = budget_pages * kPage};
  PageWork work(budget, kPiece, kPage);
  for (uint64_t set : {1, 2, 3}) work.Add(SetOf(set), 1);
  Make(work, 1, 1, 0, 100);
  EXPECT_GT(PiecesUntil(work, OperationId(1)), 0);
  GiveBack(work, 1, 100);
  Make(work, 2, 2, 0, 90);
  Make(work, 3, 3, 0, 2);
  return PiecesUntil(work, OperationId(3));
}

TEST(PageWorkTest, WhatIsGivenBackIsWaitedForWhereThereIsNoRoomBefore) {
  EXPECT_LE(PiecesUntilTwoPagesBehind100(102), 4);
  EXPECT_GT(PiecesUntilTwoPagesBehind100(92), 4);
}

TEST(PageWorkTest, ASetIsDroppedOnceItsPagesAreBackAndOthersAreMadeMeanwhileInTheirRoom) {
  PageBudget budget = {.budget_bytes = 20 * kPage};
  PageWork work(budget, kPiece, kPage);
  for (uint64_t set : {1, 2}) work.Add(SetOf(set), 1);
  Make(work, 1, 1, 0, 20);
  ASSERT_GT(PiecesUntil(work, OperationId(1)), 0);
  work.Drop(SetOf(1));
  Make(work, 2, 2, 0, 1);
  std::vector<Kind> kinds;
  while (!work.empty()) {
    const std::optional<PageWork::Piece> piece = work.Next();
    kinds.push_back(piece->kind);
    work.Done(*piece, absl::OkStatus());
  }
  EXPECT_EQ(kinds, (std::vector<Kind>{Kind::kEndMeetings, Kind::kGiveBack, Kind::kMake,
                                      Kind::kGiveBack, Kind::kGiveBack, Kind::kDrop}));
}

TEST(PageWorkTest, WhatAnotherUserGivesBackIsWaitedForWhereThereIsNoRoomBefore) {
  PageBudget budget = {.budget_bytes = 20 * kPage};
  PageWork one(budget, kPiece, kPage);
  PageWork other(budget, kPiece, kPage);
  one.Add(SetOf(1), 1);
  other.Add(SetOf(2), 1);
  Make(one, 1, 1, 0, 16);
  ASSERT_GT(PiecesUntil(one, OperationId(1)), 0);
  GiveBack(one, 1, 16);
  Make(other, 2, 2, 0, 12);
  EXPECT_EQ(other.Next(), std::nullopt);
  EXPECT_FALSE(other.empty());
  const std::optional<PageWork::Piece> back = one.Next();
  EXPECT_EQ(other.Next(), std::nullopt) << "it is not back yet";
  one.Done(*back, absl::OkStatus());
  EXPECT_EQ(PiecesUntil(other, OperationId(2)), 2);
}

// Tenants of two users that come and go over one pool, with the machine's memory in a model. Each user's work is begun and ends
// at times of its own.
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
    while ((!users_[0].work.empty() || !users_[1].work.empty()) && !::testing::Test::HasFailure())
      Work();
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
    num_arenas_[lease->set] = num_arenas;
    WorkOf(lease->set).Add(lease->set, num_arenas);
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
    for (const Trim& trim : grant->trims) WorkOf(trim.set).GiveBack(trim);
    WorkOf(set->first).Make(id, grant->commit);
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
      WorkOf(set).Drop(set);
      sets_.erase(set);
      return;
    }
  }
  struct User {
    explicit User(PageBudget& budget) : work(budget, kPiece, kPage) {}
    PageWork work;
    std::optional<PageWork::Piece> begun;
  };
  PageWork& WorkOf(ArenaSetId set) { return users_[set.value % 2].work; }

  // Memory that is being made is there, and so is what is being given back.
  void Work() {
    User& user = users_[Roll(2)];
    if (!user.begun.has_value()) {
      user.begun = user.work.Next();
      const bool waits = !user.work.empty() && !user.begun.has_value();
      ASSERT_TRUE(!waits || !OtherOf(user).work.empty()) << "it waits, and for nobody";
      if (user.begun.has_value() && user.begun->kind == Kind::kMake) Add(user.begun->range);
    } else {
      End(user, *std::exchange(user.begun, std::nullopt));
    }
    uint64_t in_use = 0;
    for (const auto& [set, there] : memory_)
      in_use += there.size() * kPage * static_cast<uint64_t>(num_arenas_.at(set));
    ASSERT_LE(in_use, kBudget);
  }
  User& OtherOf(const User& user) { return &user == &users_[0] ? users_[1] : users_[0]; }
  void Add(const Region& range) {
    for (uint64_t at = range.offset; at < range.offset + range.bytes; at += kPage)
      memory_[range.set].insert(at);
  }
  void End(User& user, const PageWork::Piece& piece) {
    const Region& range = piece.range;
    const bool fails = piece.kind == Kind::kMake && Roll(50) == 0;
    std::set<uint64_t>& pages = memory_[range.set];
    for (uint64_t at = range.offset; at < range.offset + range.bytes; at += kPage) {
      if (fails || piece.kind != Kind::kMake) pages.erase(at);
    }
    if (piece.kind == Kind::kDrop) {
      EXPECT_TRUE(pages.empty()) << "pages that nobody gives back";
      memory_.erase(range.set);
    }
    const std::optional<PageWork::Made> made =
        user.work.Done(piece, fails ? absl::ResourceExhaustedError("none") : absl::OkStatus());
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
  PageBudget budget_{.budget_bytes = kBudget};
  std::array<User, 2> users_{User(budget_), User(budget_)};
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
