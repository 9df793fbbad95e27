// Goal: what ranks have recorded is taken before it is written over, and a client that says that its area is full at every call
// makes the worker look at all areas of its set no oftener than others can bear.
#include "daemon/worker/shell/direct_areas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace epd {
namespace {

using ::testing::Each;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint32_t kRanks = 16;
constexpr uint32_t kUid = 1000;
// Of a set with so many ranks; a look at it takes a quarter of that.
const absl::Duration kBetweenLooks = absl::Microseconds(64) * kRanks;

class Areas : public ArenaSet {
 public:
  int num_arenas() const override { return kRanks; }
  uint64_t arena_bytes() const override { return 4096; }
  absl::StatusOr<ArenaShare> Share(int) override { return absl::UnimplementedError(""); }
  absl::Status Read(int, uint64_t, absl::Span<char>) const override { return absl::OkStatus(); }
  absl::StatusOr<char*> Map(int) override { return absl::UnimplementedError(""); }
  shm::DirectTail* Direct(int arena) override { return &tails_[static_cast<size_t>(arena)]; }

 private:
  std::unique_ptr<shm::DirectTail[]> tails_ = std::make_unique<shm::DirectTail[]>(kRanks);
};

class DirectAreasTest : public ::testing::Test {
 protected:
  DirectAreasTest() { Add(1, own_); }

  void Add(uint64_t group, Areas& areas) {
    ReportTenantReady ready{
        .group = GroupId(group), .formation = Formation(1), .set = ArenaSetId(group), .ranks = {}};
    std::vector<SessionId> sessions;
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      ready.ranks.emplace_back(rank);
      sessions.emplace_back(rank + 1);
    }
    ASSERT_TRUE(direct_.Add(ready, kUid, sessions, areas));
  }
  // Sets of groups 2 and on.
  std::vector<std::unique_ptr<Areas>> AddMany(uint64_t num_sets) {
    std::vector<std::unique_ptr<Areas>> sets;
    for (uint64_t group = 2; group < 2 + num_sets; ++group) {
      sets.push_back(std::make_unique<Areas>());
      Add(group, *sets.back());
    }
    return sets;
  }
  // `rank` has made so many calls for itself, which were good.
  void Call(Areas& areas, uint64_t group, uint32_t rank, uint32_t times) {
    shm::DirectArea& area = areas.Direct(static_cast<int>(rank))->area;
    const uint64_t gate = area.gate;
    for (uint32_t count = shm::GateCount(gate) + 1; times > 0; ++count, --times) {
      shm::DirectRecord& record = area.records[count % shm::kDirectRecords];
      record.call.group_id = group;
      record.call.formation = 1;
      record.call.execution = count;
      record.rank = rank;
      record.word = shm::RecordWord(count, shm::DirectState::kDone);
      area.gate = shm::DirectGate(shm::GateGeneration(gate), count);
    }
  }
  // What is taken when `rank` announces.
  std::vector<DirectOutcome> Announce(uint32_t rank, uint64_t group = 1,
                                      shm::Kind kind = shm::Kind::kDispatch) {
    shm::SlotRequest request = {};
    request.kind = kind;
    request.group_id = group;
    request.formation = 1;
    request.rank = rank;
    std::vector<DirectOutcome> taken;
    direct_.TakeIfMany(request, now_, [&](const DirectOutcome& one) { taken.push_back(one); });
    return taken;
  }

  Areas own_;
  DirectAreas direct_;
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(DirectAreasTest, AllRanksRecordsAreTakenOnceOneHasHalfItsAreaFull) {
  for (uint32_t rank = 0; rank < kRanks; ++rank) Call(own_, 1, rank, 20);
  Call(own_, 1, 3, shm::kDirectRecords / 2 - 21);
  EXPECT_THAT(Announce(3), SizeIs(0));
  Call(own_, 1, 3, 1);
  EXPECT_THAT(Announce(2), SizeIs(0)) << "rank 2 has room";
  EXPECT_THAT(Announce(3), SizeIs(20 * (kRanks - 1) + shm::kDirectRecords / 2));
  EXPECT_EQ(own_.Direct(3)->area.taken, shm::kDirectRecords / 2);
}

TEST_F(DirectAreasTest, WhoSaysThatItsAreaIsFullAtEveryCallMakesTheWorkerLookNowAndThen) {
  const absl::Duration call = absl::Microseconds(10);
  const shm::DirectArea& area = own_.Direct(5)->area;
  int num_looks = 0;
  for (int i = 0; i < 100'000; ++i) {  // A second.
    Call(own_, 1, 5, shm::kDirectRecords);
    Announce(5);
    if (area.taken == shm::GateCount(area.gate)) ++num_looks;
    now_ += call;
  }
  EXPECT_LE(num_looks, absl::Seconds(1) / kBetweenLooks + 1);
  EXPECT_GE(num_looks, absl::Seconds(1) / kBetweenLooks * 9 / 10);
}

// A deadline passes in each turn where somebody says so: a group's may be as short as it likes.
TEST_F(DirectAreasTest, WhoHasADeadlinePassInEachTurnMakesTheWorkerLookNowAndThen) {
  const absl::Duration turn = absl::Microseconds(10);
  const shm::DirectArea& area = own_.Direct(5)->area;
  int num_looks = 0;
  for (int i = 0; i < 100'000; ++i) {  // A second.
    Call(own_, 1, 5, shm::kDirectRecords);
    direct_.TakeDue(now_, [](const DirectOutcome&) {});
    if (area.taken == shm::GateCount(area.gate)) ++num_looks;
    now_ += turn;
  }
  EXPECT_LE(num_looks, absl::Seconds(1) / kBetweenLooks + 1);
  EXPECT_GE(num_looks, absl::Seconds(1) / kBetweenLooks * 9 / 10);
}

// 20 ns for each of the experts to which routes are counted, beside the rest: a quarter of the time again.
TEST_F(DirectAreasTest, WhoseRoutesTakeLongToCountIsLookedAtLessOften) {
  constexpr uint32_t kPrepares = 30;
  constexpr uint32_t kLines = shm::NumRouteLines(shm::kDirectExperts);
  const auto fill = [&] {
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      shm::DirectTail& tail = *own_.Direct(static_cast<int>(rank));
      const uint32_t before = shm::GateCount(tail.area.gate);
      for (uint32_t i = 0; i < kPrepares; ++i) {
        const uint32_t count = before + 1 + i;
        shm::DirectRecord& record = tail.area.records[count % shm::kDirectRecords];
        record.call.kind = static_cast<uint8_t>(shm::Kind::kPrepare);
        record.num_experts = shm::kDirectExperts;
        record.routes = 1 + i * kLines;
        for (uint32_t line = 0; line < kLines; ++line)
          tail.route_lines[i * kLines + line].count = count;
      }
      Call(own_, 1, rank, kPrepares);
    }
  };
  fill();
  EXPECT_THAT(Announce(0, 1, shm::Kind::kPrepare), SizeIs(kPrepares * kRanks));
  fill();
  const absl::Duration counting =
      absl::Nanoseconds(20) * (kPrepares * kRanks) * shm::kDirectExperts;
  now_ += kBetweenLooks + counting - absl::Microseconds(1);
  EXPECT_THAT(Announce(0, 1, shm::Kind::kPrepare), SizeIs(0));
  now_ += absl::Microseconds(1);
  EXPECT_THAT(Announce(0, 1, shm::Kind::kPrepare), SizeIs(kPrepares * kRanks));
}

TEST_F(DirectAreasTest, AnotherSetIsLookedAtMeanwhileAndWhoAsksForFiguresGetsThem) {
  Areas others;
  Add(2, others);
  Call(own_, 1, 0, shm::kDirectRecords);
  Call(others, 2, 0, shm::kDirectRecords);
  EXPECT_THAT(Announce(0), SizeIs(shm::kDirectRecords));
  EXPECT_THAT(Announce(0, 2), SizeIs(shm::kDirectRecords));
  Call(own_, 1, 0, shm::kDirectRecords);
  EXPECT_THAT(Announce(0), SizeIs(0));
  std::vector<GroupId> taken;
  direct_.TakeAll(now_, [&](const DirectOutcome& one) { taken.push_back(one.group); });
  EXPECT_THAT(taken, SizeIs(shm::kDirectRecords));
  EXPECT_THAT(taken, Each(GroupId(1)));
}

// A rank can say for as long as it is waited for that it is in a call of each of many groups that have ended.
TEST_F(DirectAreasTest, WhoIsInACallOfManyGroupsIsLookedAtNowAndThenAndTheOthersOnce) {
  constexpr uint64_t kGroups = 64;
  shm::DirectArea& last = own_.Direct(kRanks - 1)->area;
  for (uint64_t group = 1; group <= kGroups; ++group) {
    if (group > 1) Add(group, own_);
    shm::DirectRecord& record = last.records[group];
    record.call.group_id = group;
    record.call.formation = 1;
    record.word = shm::RecordWord(static_cast<uint32_t>(group), shm::DirectState::kPublished);
    direct_.Await({.group = GroupId(group), .formation = Formation(1)}, now_);
  }
  uint64_t num_looks = 0;
  std::vector<GroupId> idle;
  const auto poll = [&] {
    direct_.Poll(
        now_, [&](SessionId) { return ++num_looks > 0; },
        [&](GroupId group, Formation) { idle.push_back(group); });
  };
  for (int i = 0; i < 10'000; ++i) {  // 100 ms.
    poll();
    now_ += absl::Microseconds(10);
  }
  EXPECT_THAT(idle, IsEmpty());
  EXPECT_LE(num_looks, kGroups * (kRanks + 100));
  last.records[7].word = shm::RecordWord(7, shm::DirectState::kDone);
  now_ += absl::Milliseconds(1);
  poll();
  EXPECT_THAT(idle, Each(GroupId(7)));
  EXPECT_THAT(idle, SizeIs(1));
  now_ += absl::Seconds(31);
  poll();
  EXPECT_THAT(idle, SizeIs(kGroups)) << "it is waited for no longer";
}

TEST_F(DirectAreasTest, AUserWithManySetsHasAQuarterOfTheTimeWhoeverAsks) {
  constexpr uint64_t kSets = 32;
  const std::vector<std::unique_ptr<Areas>> sets = AddMany(kSets);
  uint64_t num_taken = 0;
  for (int i = 0; i < 50; ++i) {  // A second.
    for (uint64_t n = 0; n < kSets; ++n)
      for (uint32_t rank = 0; rank < kRanks; ++rank)
        Call(*sets[n], 2 + n, rank, shm::kDirectRecords);
    for (uint64_t n = 0; n < kSets; ++n) num_taken += Announce(0, 2 + n).size();
    direct_.TakeAll(now_, [&](const DirectOutcome&) { ++num_taken; });
    now_ += absl::Milliseconds(20);
  }
  // Of 130 ns each.
  EXPECT_LE(num_taken, 2'100'000u);
  EXPECT_GE(num_taken, 1'000'000u);
}

TEST_F(DirectAreasTest, WhatIsLeftIsTakenBeforeTheArenasGoHoweverLatelyAllWereLookedAt) {
  int num_taken = 0;
  const auto take = [&](const DirectOutcome&) { ++num_taken; };
  direct_.TakeAll(now_, take);
  Call(own_, 1, 3, 7);
  direct_.TakeAll(now_, take);
  EXPECT_EQ(num_taken, 0) << "all were looked at just now";
  direct_.Drop(ArenaSetId(1), now_, take);
  EXPECT_EQ(num_taken, 7);
  direct_.Drop(ArenaSetId(1), now_, take);
  EXPECT_EQ(num_taken, 7);
}

// epctl explain may be run in a loop.
TEST_F(DirectAreasTest, WhoAsksForAllAgainAndAgainHasIdleSetsLookedAtNowAndThen) {
  constexpr uint64_t kSets = 255;
  const std::vector<std::unique_ptr<Areas>> sets = AddMany(kSets);
  int num_looks = 0;
  for (int i = 0; i < 10'000; ++i) {  // A second.
    Call(own_, 1, 0, 1);
    bool looked = false;
    direct_.TakeAll(now_, [&](const DirectOutcome&) { looked = true; });
    num_looks += looked ? 1 : 0;
    now_ += absl::Microseconds(100);
  }
  // Of 4,096 ranks in 0.8 ms.
  EXPECT_LE(num_looks, 63);
  EXPECT_GE(num_looks, 50);
}

TEST_F(DirectAreasTest, WhatARankSaysInAnothersNameIsLeftOut) {
  Call(own_, 1, 0, shm::kDirectRecords);
  for (shm::DirectRecord& record : own_.Direct(0)->area.records) record.rank = 1;
  EXPECT_THAT(Announce(0), SizeIs(0));
  EXPECT_EQ(own_.Direct(0)->area.taken, shm::kDirectRecords) << "it has room again all the same";
}

TEST_F(DirectAreasTest, APreparesRoutesComeWithItsRecordAlone) {
  shm::DirectTail& tail = *own_.Direct(2);
  Call(own_, 1, 2, 5);
  for (shm::DirectRecord& record : tail.area.records) {
    record.call.kind = static_cast<uint8_t>(shm::Kind::kPrepare);
    record.num_experts = 31;
    record.routes = 8;
    record.padded_rows = 5;
  }
  tail.route_lines[7] = {.count = 1, .of_expert = {4, 0, 65535}};
  tail.route_lines[8] = {.count = 1, .of_expert = {9}};
  tail.area.records[3].routes = shm::kRouteLines;  // Its second line would lie behind the last.
  tail.area.records[4].routes = 0;
  tail.area.records[5].num_experts = 1'000'000;
  std::vector<DirectOutcome> taken;
  direct_.TakeAll(now_, [&](const DirectOutcome& one) { taken.push_back(one); });
  ASSERT_THAT(taken, SizeIs(5));
  std::vector<uint16_t> expected(31);
  expected[0] = 4;
  expected[2] = 65535;
  expected[30] = 9;
  EXPECT_EQ(taken[0].routes, expected);
  EXPECT_EQ(taken[0].padded_rows, 5u);
  for (int i = 1; i < 5; ++i) EXPECT_THAT(taken[i].routes, IsEmpty()) << i;
}

TEST_F(DirectAreasTest, WhoHasNoLineLeftForRoutesIsLookedAtAtItsPrepareAndNotBefore) {
  Call(own_, 1, 4, shm::kFewestRoutes);
  EXPECT_THAT(Announce(4), SizeIs(0));
  EXPECT_THAT(Announce(4, 1, shm::Kind::kPrepare), SizeIs(shm::kFewestRoutes));
  EXPECT_THAT(Announce(4, 1, shm::Kind::kPrepare), SizeIs(0));
}

}  // namespace
}  // namespace epd
