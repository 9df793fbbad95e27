// Goal: of each rank the last 64 operations are known, with their fingerprint and how far it came,
// and nothing of another rank's.
#include "daemon/worker/engine/past_operations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/daemon/worker/exchange_harness.h"

namespace epd {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

using Line = ExchangeSnapshot::PastLine;

class PastOperationsTest : public testing::Test {
 protected:
  void SetUp() override { h.StartTenant(ExchangeHarness::Spec(2)); }

  std::vector<Line> Past(uint32_t rank, size_t max_of_rank = kPastOperations,
                         size_t max_lines = 1000) {
    std::vector<Line> lines = h.exchange.Past(kGroup, max_of_rank, max_lines, h.now);
    std::erase_if(lines, [&](const Line& line) { return line.rank != Rank(rank); });
    return lines;
  }

  void RunOnce(uint64_t execution) {
    const std::vector<Submission> submissions =
        h.AnnounceAll({h.Request(0, execution), h.Request(1, execution)});
    h.Finish(h.operation(submissions[0]));
  }

  ExchangeHarness h;
};

TEST_F(PastOperationsTest, AnOpenOperationIsInThePhaseOfEachRank) {
  h.Take(h.Request(0));
  h.Advance(absl::Seconds(3));
  ASSERT_THAT(Past(0), SizeIs(1));
  EXPECT_THAT(Past(1), IsEmpty());
  EXPECT_EQ(Past(0)[0].phase, "announce");
  EXPECT_EQ(Past(0)[0].kind, "prepare");
  EXPECT_EQ(Past(0)[0].age, absl::Seconds(3));
  EXPECT_THAT(Past(0)[0].key, HasSubstr("execution=0 ordinal=0 occurrence=0"));
  const Submission last = h.Take(h.Request(1));
  EXPECT_EQ(Past(0)[0].phase, "copying");
  h.Step(1, h.operation(last), shm::Step::kPublish);
  EXPECT_EQ(Past(0)[0].phase, "copying");
  EXPECT_EQ(Past(1)[0].phase, "publish");
  EXPECT_EQ(Past(0)[0].fingerprint, Past(1)[0].fingerprint);
  EXPECT_EQ(Past(0)[0].key, Past(1)[0].key);
}

TEST_F(PastOperationsTest, TheLast64AreKeptNewestFirst) {
  for (uint64_t execution = 0; execution < 100; ++execution) RunOnce(execution);
  const std::vector<Line> past = Past(1);
  ASSERT_THAT(past, SizeIs(kPastOperations));
  for (size_t i = 0; i < past.size(); ++i) {
    EXPECT_THAT(past[i].key, HasSubstr(absl::StrCat("execution=", 99 - i, " ")));
    EXPECT_EQ(past[i].phase, "done");
  }
  EXPECT_THAT(Past(1, 5), SizeIs(5));
  EXPECT_THAT(Past(1, kPastOperations, 6), SizeIs(3)) << "as many of each rank";
}

TEST_F(PastOperationsTest, CallsThatDoNotAgreeHaveOtherFingerprintsAndFail) {
  shm::SlotRequest odd = h.Request(1);
  odd.alignment = 8;
  h.AnnounceAll({h.Request(0), odd});
  EXPECT_NE(Past(0)[0].fingerprint, Past(1)[0].fingerprint);
  EXPECT_EQ(Past(0)[0].phase, "failed in announce");
  EXPECT_EQ(Past(1)[0].code, absl::StatusCode::kInvalidArgument);
}

TEST_F(PastOperationsTest, ADeadSessionsOperationsEndWithItAndTheNextFormationShowsThem) {
  RunOnce(0);
  h.Take(h.Request(0, 1));
  h.SessionDead(ExchangeHarness::SessionOf(0), absl::UnavailableError("killed"));
  h.StartTenant(ExchangeHarness::Spec(2), kGroup, 2);
  const std::vector<Line> past = Past(0);
  ASSERT_THAT(past, SizeIs(2));
  EXPECT_EQ(past[0].phase, "failed in announce");
  EXPECT_EQ(past[0].code, absl::StatusCode::kUnavailable);
  EXPECT_EQ(past[1].phase, "done");
}

TEST(FingerprintTest, EveryFieldThatMustAgreeIsInIt) {
  const Announcement usual{.dtype = 1, .top_k = 2, .alignment = 1, .row_bytes = 32, .plan_id = 7};
  Announcement other = usual;
  other.plan_id = 8;
  EXPECT_NE(FingerprintOf(usual), FingerprintOf(other));
  other = usual;
  other.kind = shm::Kind::kCombine;
  EXPECT_NE(FingerprintOf(usual), FingerprintOf(other));
  other = usual;
  other.spec_hash = 1;
  EXPECT_NE(FingerprintOf(usual), FingerprintOf(other));
  other = usual;
  other.num_tokens = 99;  // Ranks may differ in it.
  EXPECT_EQ(FingerprintOf(usual), FingerprintOf(other));
}

// 64 operations of each rank that called, and each program: 2.5 MB of a group of 240 ranks.
TEST_F(PastOperationsTest, OfGroupsThatHaveEndedTheOldestLoseTheirPastWhereItIsTooMuch) {
  constexpr uint32_t kRanks = 240;
  constexpr uint64_t kGroups = 20;
  const GroupSpec spec = ExchangeHarness::Spec(kRanks);
  for (uint64_t n = 0; n < kGroups; ++n) {
    const GroupId group(100 + n);
    h.StartTenant(spec, group);
    for (uint32_t rank = 1; rank < kRanks; ++rank) {  // Rank 0 never comes.
      shm::SlotRequest request = h.Request(rank);
      request.group_id = group.value;
      h.Take(request);
    }
    EXPECT_THAT(h.exchange.Past(group, 1, 1000, h.now), SizeIs(kRanks - 1)) << n;
    h.Advance(absl::Milliseconds(1));
    h.exchange.EndTenant(group, Formation(1), absl::OkStatus(), h.now);
    h.Perform();
  }
  const auto past = [&](uint64_t n) { return h.exchange.Past(GroupId(100 + n), 1, 1000, h.now); };
  EXPECT_THAT(past(0), IsEmpty());
  EXPECT_THAT(past(kGroups - 1), SizeIs(kRanks - 1));
  // Why it ended stays.
  shm::SlotRequest late = h.Request(1, 1);
  late.group_id = 100;
  EXPECT_THAT(h.text(h.Take(late)), HasSubstr("the group has ended"));
}

}  // namespace
}  // namespace epd
