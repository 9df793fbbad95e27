// Goal: staging goes by ticket. Nobody overtakes who is first, and who waits for a stream region stops nobody else.
#include "daemon/worker/engine/admission_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/daemon/worker/engine_parts.h"

namespace epd {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint64_t kPage = 4096;

class AdmissionQueueTest : public ::testing::Test {
 protected:
  AdmissionQueueTest() {
    tenant_->set = staging_.Acquire({{kSession, 0}, {kSession, 1}})->set;
    tenant_->stream_region_bytes = kPage;
  }
  Operation MakeOperation(uint64_t id, uint32_t num_from_stream = 0) {
    Operation operation;
    operation.id = OperationId(id);
    operation.tenant = tenant_.get();
    operation.parts.resize(2);
    for (uint32_t r = 0; r < num_from_stream; ++r) operation.parts[r].said.from_stream = true;
    EXPECT_EQ(queue_.CheckFits(operation, kPage, "the pool").ok(), num_from_stream != 1);
    return operation;
  }
  static Ticket At(uint64_t clock) { return {clock, Incarnation(1)}; }
  // What gets its region next; null: nobody.
  const Operation* Next() {
    const std::optional<AdmissionQueue::Grant> grant = queue_.Next();
    return grant.has_value() && !grant->blocked ? grant->operation : nullptr;
  }

  // Room for one operation of two pages, or two of one, of two ranks.
  Staging staging_{4 * kPage, kPage};
  AdmissionQueue queue_{staging_};
  std::unique_ptr<Tenant> tenant_ = MakeTenant();
};

TEST_F(AdmissionQueueTest, TheOldestTicketIsFirstHoweverLateItComes) {
  Operation young = MakeOperation(1);
  Operation old = MakeOperation(2);
  queue_.Add(young, kPage, At(2));
  queue_.Add(old, kPage, At(1));
  EXPECT_EQ(Next(), &old);
  EXPECT_EQ(Next(), &young);
  EXPECT_EQ(Next(), nullptr);
}

TEST_F(AdmissionQueueTest, ASmallOneWaitsBehindALargeOneThatDoesNotFitYet) {
  Operation holder = MakeOperation(1);
  Operation large = MakeOperation(2);
  Operation small = MakeOperation(3);
  queue_.Add(holder, kPage, At(1));
  ASSERT_EQ(Next(), &holder);
  queue_.Add(large, 2 * kPage, At(2));
  queue_.Add(small, kPage, At(3));
  const std::optional<AdmissionQueue::Grant> grant = queue_.Next();
  ASSERT_TRUE(grant.has_value());
  EXPECT_TRUE(grant->blocked);
  EXPECT_EQ(grant->operation, &large);
  EXPECT_TRUE(queue_.TakeChange());
  queue_.FreeRegion(holder);
  EXPECT_TRUE(queue_.TakeChange()) << "somebody should look again";
  EXPECT_EQ(Next(), &large);
}

TEST_F(AdmissionQueueTest, WhoFailsInFrontLetsTheNextOnePass) {
  Operation large = MakeOperation(1);
  Operation small = MakeOperation(2);
  Operation holder = MakeOperation(3);
  queue_.Add(holder, kPage, At(1));
  ASSERT_EQ(Next(), &holder);
  queue_.Add(large, 2 * kPage, At(2));
  queue_.Add(small, kPage, At(3));
  EXPECT_EQ(Next(), nullptr);
  queue_.TakeChange();
  queue_.Remove(large);
  EXPECT_TRUE(queue_.TakeChange());
  EXPECT_EQ(Next(), &small);
  queue_.Remove(small);
  EXPECT_FALSE(queue_.TakeChange()) << "it waited for nothing any more";
}

TEST_F(AdmissionQueueTest, AStreamRegionHasOneUserAndNobodyElseWaitsForIt) {
  Operation first = MakeOperation(1, 2);
  Operation second = MakeOperation(2, 2);
  Operation pooled = MakeOperation(3);
  queue_.Add(first, kPage, At(1));
  queue_.Add(second, kPage, At(2));
  queue_.Add(pooled, kPage, At(3));
  EXPECT_EQ(Next(), &first);
  EXPECT_EQ(Next(), &pooled);
  EXPECT_EQ(Next(), nullptr);
  queue_.FreeRegion(first);
  EXPECT_EQ(Next(), &second);
}

TEST_F(AdmissionQueueTest, RanksOnStreamsAndOthersDoNotMix) { MakeOperation(1, 1); }

// A user keeps it in memory: whoever was given it would wait for pages that do not come.
TEST_F(AdmissionQueueTest, WhatIsNotBackIsGivenToNobody) {
  Operation first = MakeOperation(1);
  Operation second = MakeOperation(2);
  staging_.SetWithheld(2 * kPage);
  queue_.Add(first, kPage, At(1));
  queue_.Add(second, kPage, At(2));
  EXPECT_EQ(Next(), &first);
  EXPECT_EQ(Next(), nullptr);
  queue_.FreeRegion(first);
  EXPECT_EQ(Next(), &second) << "its pages are there";
  queue_.FreeRegion(second);
  staging_.SetWithheld(0);
  Operation large = MakeOperation(3);
  queue_.Add(large, 2 * kPage, At(3));
  EXPECT_EQ(Next(), &large);
}

// ---- quotas ----

class QuotaTest : public ::testing::Test {
 protected:
  // Two tenants of uid 1000, of two ranks each, and one of uid 1001; every operation takes a page of each rank.
  explicit QuotaTest(const EngineLimits& limits = {.staging_per_tenant = 2 * 2 * kPage})
      : queue_(staging_, limits) {
    uint64_t session = 1;
    for (const auto& tenant : {mine_.get(), also_mine_.get(), other_.get()}) {
      tenant->uid = tenant == other_.get() ? 1001 : 1000;
      const SessionId id(session++);
      tenant->set = staging_.Acquire({{id, 0}, {id, 1}}, tenant->uid)->set;
    }
  }
  // Waits for `bytes` of each rank, behind those before it.
  void Add(Operation& operation, const std::unique_ptr<Tenant>& tenant, uint64_t bytes = kPage) {
    operation.tenant = tenant.get();
    operation.parts.resize(2);
    queue_.Add(operation, bytes, {++clock_, Incarnation(1)});
  }
  // Operations that get their regions now.
  int Grants() {
    int granted = 0;
    for (auto grant = queue_.Next(); grant.has_value() && !grant->blocked; grant = queue_.Next())
      ++granted;
    return granted;
  }

  uint64_t clock_ = 0;
  Staging staging_{64 * kPage, kPage};
  AdmissionQueue queue_;
  std::unique_ptr<Tenant> mine_ = MakeTenant(2, GroupId(1));
  std::unique_ptr<Tenant> also_mine_ = MakeTenant(2, GroupId(2));
  std::unique_ptr<Tenant> other_ = MakeTenant(2, GroupId(3));
};

TEST_F(QuotaTest, ATenantWaitsForItsOwnOperationsAndNobodyWaitsForIt) {
  Operation first;
  Operation second;
  Operation third;
  Operation others;
  Add(first, mine_);
  Add(second, mine_);
  Add(third, mine_);
  Add(others, other_);
  EXPECT_EQ(queue_.Next()->operation, &first);
  EXPECT_EQ(queue_.Next()->operation, &second);
  EXPECT_EQ(queue_.Next()->operation, &others) << "it shares no quota with the third";
  const std::optional<AdmissionQueue::Grant> late = queue_.Next();
  ASSERT_TRUE(late.has_value());
  EXPECT_TRUE(late->blocked);
  EXPECT_EQ(late->operation, &third);
  const std::string why(queue_.CheckQuota(third).message());
  EXPECT_THAT(why, HasSubstr("group=g of uid 1000 holds 16384 bytes"));
  EXPECT_THAT(why, HasSubstr("the most is 16384 (max_staging_per_tenant)"));
  EXPECT_EQ(queue_.StagedBytes(*mine_), 4 * kPage);
  queue_.FreeRegion(first);
  EXPECT_EQ(queue_.Next()->operation, &third);
}

TEST_F(QuotaTest, WhatNeverFitsIsRefusedAtOnce) {
  Operation large;
  large.tenant = mine_.get();
  large.parts.resize(2);
  const absl::Status refused = queue_.CheckFits(large, 3 * kPage, "the pool");
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("asks for 24576"), HasSubstr("max_staging_per_tenant")));
}

// A large one that waits for its quota is not starved by small ones of the same tenant.
TEST_F(QuotaTest, NobodyOfTheSameTenantOvertakes) {
  Operation holder;
  Operation large;
  Operation small;
  Add(holder, mine_);
  Add(large, mine_, 2 * kPage);
  Add(small, mine_);
  EXPECT_EQ(queue_.Next()->operation, &holder);
  EXPECT_TRUE(queue_.Next()->blocked);
  queue_.FreeRegion(holder);
  EXPECT_EQ(queue_.Next()->operation, &large);
}

class UidQuotaTest : public QuotaTest {
 protected:
  UidQuotaTest() : QuotaTest({.staging_per_uid = 2 * 2 * kPage}) {}
};

TEST_F(UidQuotaTest, TenantsOfOneUidShareItAndAnotherUidHasItsOwn) {
  Operation operations[5];
  Add(operations[0], mine_);
  Add(operations[1], also_mine_);
  Add(operations[2], also_mine_);
  Add(operations[3], other_);
  Add(operations[4], other_);
  EXPECT_EQ(Grants(), 4);
  EXPECT_FALSE(operations[2].region.has_value());
  EXPECT_THAT(std::string(queue_.CheckQuota(operations[2]).message()),
              AllOf(HasSubstr("uid 1000 with all its tenants holds 16384"),
                    HasSubstr("max_staging_per_uid")));
  queue_.FreeRegion(operations[0]);
  EXPECT_EQ(Grants(), 1);
}

// It stays in memory, and a user can keep it there: with each set he uses he would have more of the pool.
TEST_F(UidQuotaTest, WhatIsFreeInMemoryIsItsUidsAndGivenBackForWhatItAsksFor) {
  Operation first;
  Operation second;
  Operation others;
  Add(first, mine_, 2 * kPage);
  EXPECT_EQ(Grants(), 1);
  queue_.FreeRegion(first);
  Add(second, also_mine_);
  Add(others, other_, 2 * kPage);
  const std::optional<AdmissionQueue::Grant> grant = queue_.Next();
  ASSERT_TRUE(grant.has_value());
  EXPECT_EQ(grant->operation, &second);
  EXPECT_THAT(grant->trims, ElementsAre(Trim{mine_->set, kPage, kPage}));
  EXPECT_EQ(staging_.CommittedBytes(1000), 2 * 2 * kPage);
  EXPECT_EQ(Grants(), 1);
  EXPECT_EQ(staging_.CommittedBytes(1001), 2 * 2 * kPage);
  EXPECT_TRUE(staging_.pool().CheckConsistent().ok());
}

TEST_F(UidQuotaTest, WhoHasNothingIdleWaitsAndNobodyElseDoes) {
  Operation low;
  Operation high;
  Operation wide;
  Operation others;
  Add(low, mine_);
  Add(high, mine_);
  EXPECT_EQ(Grants(), 2);
  queue_.FreeRegion(low);
  Add(wide, also_mine_);
  Add(others, other_);
  EXPECT_EQ(queue_.Next()->operation, &others);
  EXPECT_TRUE(queue_.Next()->blocked);
  EXPECT_THAT(std::string(queue_.CheckQuota(wide).message()),
              AllOf(HasSubstr("uid 1000 with all its tenants has 16384 bytes of staging in memory"),
                    HasSubstr("asks for 8192; the most is 16384 (max_staging_per_uid)")));
  queue_.FreeRegion(high);
  EXPECT_EQ(queue_.Next()->operation, &wide);
}

// Attaching again and again does not give a process the staging that its ended sessions still hold.
TEST_F(UidQuotaTest, WhatADeadSessionHoldsIsItsUids) {
  Operation first;
  Add(first, mine_, 2 * kPage);
  ASSERT_EQ(Grants(), 1);
  queue_.PagesCommitted(first);
  staging_.SessionDead(SessionId(1), /*process_alive=*/true);
  queue_.FreeRegion(first);
  EXPECT_TRUE(staging_.Release(mine_->set).empty());
  EXPECT_EQ(staging_.InUseByUid()[1000], 4 * kPage);
  Operation next;
  Add(next, also_mine_);
  EXPECT_EQ(Grants(), 0);
  staging_.ProcessGone(SessionId(1));
  EXPECT_EQ(Grants(), 1);
}

}  // namespace
}  // namespace epd
