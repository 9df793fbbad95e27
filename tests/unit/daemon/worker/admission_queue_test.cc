// Goal: staging goes by ticket. Nobody overtakes who is first, and who waits for a stream region stops nobody else.
#include "daemon/worker/engine/admission_queue.h"

#include <gtest/gtest.h>

#include "tests/unit/daemon/worker/engine_parts.h"

namespace epd {
namespace {

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

}  // namespace
}  // namespace epd
