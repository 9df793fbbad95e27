// Goal: operations are found by what names them, for as long as it names them, and an id never shares its outcome record.
#include "daemon/worker/engine/operation_table.h"

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
  EXPECT_EQ(table.CheckRoomFor(kSession).code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace epd
