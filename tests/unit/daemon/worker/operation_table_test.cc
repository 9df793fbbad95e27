// Goal: operations are found by what names them, for as long as it names them, and an id never shares its outcome record.
#include "daemon/worker/engine/operation_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/daemon/worker/engine_parts.h"

namespace epd {
namespace {

const absl::Time kStart = absl::UnixEpoch();

TEST(OperationTableTest, AnIdIsLeftOutWhileItsRecordIsTaken) {
  OperationTable table(/*first_id=*/1, /*max_open=*/8);
  const std::unique_ptr<Tenant> tenant = MakeTenant();
  const Operation& first = table.Open(*tenant, MakeKey(0), "a", kStart);
  for (uint32_t i = 1; i < shm::kMaxOperations; ++i) {
    table.Close(table.Open(*tenant, MakeKey(i), "b", kStart));
  }
  const Operation& next = table.Open(*tenant, MakeKey(0x10000), "c", kStart);
  EXPECT_EQ(next.id.value, first.id.value + shm::kMaxOperations + 1);
}

TEST(OperationTableTest, AKeyThatAFailedOperationGaveUpIsTheNextOnes) {
  OperationTable table(1, 8);
  const std::unique_ptr<Tenant> tenant = MakeTenant();
  Operation& failed = table.Open(*tenant, MakeKey(0), "a", kStart);
  failed.phase = Phase::kFailed;
  table.GiveUpKey(failed);
  EXPECT_EQ(table.Find(*tenant, MakeKey(0)), nullptr);
  Operation& next = table.Open(*tenant, MakeKey(0), "a", kStart);
  table.Close(failed);
  EXPECT_EQ(table.Find(*tenant, MakeKey(0)), &next) << "the failed one does not take it along";
  EXPECT_EQ(tenant->num_open, 1u);
}

TEST(OperationTableTest, TenantsWithTheSameKeysAreApart) {
  OperationTable table(1, 8);
  const std::unique_ptr<Tenant> one = MakeTenant();
  const std::unique_ptr<Tenant> other = MakeTenant();
  const Operation& operation = table.Open(*one, MakeKey(0), "a", kStart);
  EXPECT_EQ(table.Find(*one, MakeKey(0)), &operation);
  EXPECT_EQ(table.Find(*other, MakeKey(0)), nullptr);
  EXPECT_TRUE(table.FindUndecided(*other).empty());
}

// Its neighbours in the order of keys are of executions just below and above.
TEST(OperationTableTest, OfAnExecutionTheUndecidedAreFoundAndOfATenantAllOpenOnes) {
  OperationTable table(1, 16);
  const std::unique_ptr<Tenant> tenant = MakeTenant();
  std::vector<Operation*> all;
  for (const uint64_t number : {4u, 5u, 6u}) {
    for (const uint32_t ordinal : {0u, 1u, UINT32_MAX}) {
      OperationKey key = MakeKey(ordinal);
      key.execution.number = number;
      all.push_back(&table.Open(*tenant, key, "a", kStart));
    }
  }
  all[4]->phase = Phase::kGood;
  const Execution fifth{.number = 5};
  EXPECT_THAT(table.FindUndecided(*tenant, fifth), testing::ElementsAre(all[3], all[5]));
  EXPECT_THAT(table.FindUndecided(*tenant, Execution{.number = 7}), testing::IsEmpty());
  EXPECT_THAT(table.FindUndecided(*MakeTenant(), fifth), testing::IsEmpty());
  EXPECT_THAT(table.FindOpen(*tenant), testing::ElementsAreArray(all));
  all[3]->phase = Phase::kFailed;
  table.GiveUpKey(*all[3]);
  EXPECT_THAT(table.FindUndecided(*tenant, fifth), testing::ElementsAre(all[5]));
  EXPECT_THAT(table.FindOpen(*tenant), testing::ElementsAreArray(all));
  table.Close(*all[3]);
  all.erase(all.begin() + 3);
  EXPECT_THAT(table.FindOpen(*tenant), testing::ElementsAreArray(all));
  for (Operation* operation : all) table.Close(*operation);
  EXPECT_THAT(table.FindOpen(*tenant), testing::IsEmpty());
}

TEST(OperationTableTest, TheEarliestDeadlineIsDueAndAClosedOperationHasNone) {
  OperationTable table(1, 8);
  const std::unique_ptr<Tenant> tenant = MakeTenant();
  Operation& late = table.Open(*tenant, MakeKey(0), "a", kStart);
  Operation& early = table.Open(*tenant, MakeKey(1), "b", kStart);
  EXPECT_EQ(table.FindDue(absl::InfiniteFuture()), nullptr);
  table.SetDeadline(late, kStart + absl::Seconds(2));
  table.SetDeadline(early, kStart + absl::Seconds(3));
  table.SetDeadline(early, kStart + absl::Seconds(1));
  EXPECT_EQ(table.FindDue(kStart), nullptr);
  EXPECT_EQ(table.FindDue(kStart + absl::Seconds(1)), &early);
  table.Close(early);
  EXPECT_EQ(table.next_deadline(), kStart + absl::Seconds(2));
}

TEST(OperationTableTest, ASessionHasRoomForAsManyPartsAsSlots) {
  OperationTable table(1, 1);
  for (uint32_t i = 0; i < shm::kSlotsPerSession; ++i) {
    EXPECT_TRUE(table.CheckRoomFor(kSession).ok());
    table.CountPart(kSession);
  }
  EXPECT_EQ(table.CheckRoomFor(kSession).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(table.CheckRoomFor(SessionId(2)).ok());
  table.PartIsOver(kSession);
  EXPECT_TRUE(table.CheckRoomFor(kSession).ok());
  const std::unique_ptr<Tenant> tenant = MakeTenant();
  table.Open(*tenant, MakeKey(0), "a", kStart);
  EXPECT_EQ(table.CheckRoom(*tenant).code(), absl::StatusCode::kResourceExhausted);
}

// Two clients of one uid and one of another.
TEST(OperationTableTest, OneUidLeavesRecordsForOthersHoweverManyTenantsItHas) {
  OperationTable table(1, 3, {.operations_per_session = 1, .operations_per_uid = 2});
  const std::unique_ptr<Tenant> first = MakeTenant(2, GroupId(1));
  const std::unique_ptr<Tenant> second = MakeTenant(2, GroupId(2));
  const std::unique_ptr<Tenant> other = MakeTenant(2, GroupId(3));
  first->uid = second->uid = 1000;
  other->uid = 1001;
  Operation& open = table.Open(*first, MakeKey(0), "a", kStart);
  EXPECT_TRUE(table.CheckRoom(*second).ok());
  table.Open(*second, MakeKey(0), "b", kStart);
  const absl::Status full = table.CheckRoom(*second);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()),
              testing::AllOf(testing::HasSubstr("uid 1000 have 2 operations open"),
                             testing::HasSubstr("max_operations_per_uid")));
  EXPECT_TRUE(table.CheckRoom(*other).ok());
  table.Close(open);
  EXPECT_TRUE(table.CheckRoom(*first).ok());

  table.CountPart(kSession);
  EXPECT_THAT(std::string(table.CheckRoomFor(kSession).message()),
              testing::HasSubstr("max_operations_per_session"));
  EXPECT_TRUE(table.CheckRoomFor(SessionId(2)).ok());
}

// An operation's memory is that of its ranks.
TEST(OperationTableTest, OneUidsOpenOperationsHaveNoMoreRanksThanTheMost) {
  constexpr uint32_t kRanks = 1024;
  constexpr uint64_t kMost = OperationTable::kMaxPartsOfUid / kRanks;
  OperationTable table(1, shm::kMaxOperations);
  const std::unique_ptr<Tenant> large = MakeTenant(kRanks, GroupId(1));
  const std::unique_ptr<Tenant> small = MakeTenant(1, GroupId(2));
  const std::unique_ptr<Tenant> other = MakeTenant(kRanks, GroupId(3));
  large->uid = small->uid = 1000;
  other->uid = 1001;
  std::vector<Operation*> open;
  for (uint64_t i = 0; i < kMost; ++i) {
    ASSERT_TRUE(table.CheckRoom(*large).ok()) << i;
    open.push_back(&table.Open(*large, MakeKey(i), "a", kStart));
  }
  const absl::Status full = table.CheckRoom(*small);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()),
              testing::AllOf(testing::HasSubstr("uid 1000 have 524288 ranks"),
                             testing::HasSubstr("one more would add 1,"),
                             testing::HasSubstr("is 524288; wait")));
  EXPECT_TRUE(table.CheckRoom(*other).ok());
  table.Close(*open.front());
  EXPECT_TRUE(table.CheckRoom(*small).ok());
  EXPECT_TRUE(table.CheckRoom(*large).ok());
  table.Open(*small, MakeKey(0), "b", kStart);
  EXPECT_FALSE(table.CheckRoom(*large).ok());
}

}  // namespace
}  // namespace epd
