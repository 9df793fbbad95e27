// Goal: calls with equal identity become one operation in whatever order they come; calls that do
// not agree end with the same error on every rank, which names values and ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/daemon/worker/exchange_harness.h"

namespace epd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Code = absl::StatusCode;

class Matching : public ::testing::Test {
 protected:
  void SetUp() override { h_.StartTenant(h_.Spec(3)); }
  ExchangeHarness h_;
};

TEST_F(Matching, AnnounceIsAnsweredOnceEveryRankHasAnnounced) {
  const Submission first = h_.Take(h_.Request(0));
  const Submission second = h_.Take(h_.Request(1));
  EXPECT_FALSE(h_.answered(first));
  EXPECT_FALSE(h_.answered(second));
  const Submission third = h_.Take(h_.Request(2));
  for (const Submission& submission : {first, second, third}) {
    EXPECT_EQ(h_.code(submission), Code::kOk) << h_.text(submission);
    EXPECT_EQ(h_.operation(submission), h_.operation(first));
    EXPECT_EQ(h_.answers.at(submission).region.offset, 0u);
    EXPECT_EQ(h_.answers.at(submission).region.bytes, 4096u);
    EXPECT_EQ(h_.links.at(submission), h_.operation(first));
  }
}

TEST_F(Matching, WholeLifeFreesTheRegionAndClosesTheRecord) {
  const auto submissions = h_.AnnounceAll({h_.Request(0), h_.Request(1), h_.Request(2)});
  const OperationId op = h_.operation(submissions[0]);
  std::vector<Submission> publishes;
  for (uint32_t r = 0; r < 3; ++r) publishes.push_back(h_.Step(r, op, shm::Step::kPublish));
  for (const Submission& submission : publishes) EXPECT_EQ(h_.code(submission), Code::kOk);
  EXPECT_EQ(h_.decided.at(op), absl::OkStatus());
  EXPECT_EQ(h_.num_count_routes, 1);
  const Submission early = h_.Step(0, op, shm::Step::kPulled);
  EXPECT_FALSE(h_.answered(early)) << "the region is still read by others";
  h_.Step(1, op, shm::Step::kPulled);
  h_.Step(2, op, shm::Step::kPulled);
  EXPECT_EQ(h_.code(early), Code::kOk);
  EXPECT_EQ(h_.exchange.num_open_operations(), 0u);
  EXPECT_EQ(h_.exchange.staging().pool().in_use_bytes(), 0u);
  EXPECT_TRUE(h_.records.empty());
}

TEST_F(Matching, PublishIsAnsweredOnceAllHavePublished) {
  const auto submissions = h_.AnnounceAll({h_.Request(0), h_.Request(1), h_.Request(2)});
  const OperationId op = h_.operation(submissions[0]);
  const Submission first = h_.Step(0, op, shm::Step::kPublish);
  h_.Step(1, op, shm::Step::kPublish);
  EXPECT_FALSE(h_.answered(first));
  EXPECT_FALSE(h_.decided.contains(op));
  h_.Step(2, op, shm::Step::kPublish);
  EXPECT_EQ(h_.code(first), Code::kOk);
}

TEST_F(Matching, DifferentOrdersOnDifferentRanksPairUpByIdentity) {
  shm::SlotRequest other[3] = {h_.Request(0), h_.Request(1), h_.Request(2)};
  for (auto& request : other) request.ordinal = 5;
  const Submission a0 = h_.Take(h_.Request(0));
  const Submission b1 = h_.Take(other[1]);
  const Submission b2 = h_.Take(other[2]);
  const Submission b0 = h_.Take(other[0]);
  const Submission a2 = h_.Take(h_.Request(2));
  EXPECT_FALSE(h_.answered(a0));
  const Submission a1 = h_.Take(h_.Request(1));
  EXPECT_EQ(h_.operation(a0), h_.operation(a1));
  EXPECT_EQ(h_.operation(a0), h_.operation(a2));
  EXPECT_EQ(h_.operation(b0), h_.operation(b1));
  EXPECT_EQ(h_.operation(b0), h_.operation(b2));
  EXPECT_NE(h_.operation(a0), h_.operation(b0));
  EXPECT_NE(h_.answers.at(a0).region.offset, h_.answers.at(b0).region.offset);
}

TEST_F(Matching, EveryPartOfTheKeyKeepsOperationsApart) {
  std::vector<shm::SlotRequest> keys(5, h_.Request(0));
  keys[1].program[3] = 9;
  keys[2].execution = 1;
  keys[3].ordinal = 1;
  keys[4].occurrence = 1;
  for (const auto& request : keys) h_.Take(request);
  EXPECT_EQ(h_.exchange.num_open_operations(), keys.size());
}

TEST_F(Matching, SameKeyTwiceOnOneRankIsRefusedAndTheFirstStands) {
  const Submission first = h_.Take(h_.Request(0));
  const Submission again = h_.Take(h_.Request(0));
  EXPECT_EQ(h_.code(again), Code::kInvalidArgument);
  EXPECT_THAT(h_.text(again), HasSubstr("a key may be used once"));
  h_.Take(h_.Request(1));
  h_.Take(h_.Request(2));
  EXPECT_EQ(h_.code(first), Code::kOk);
}

TEST_F(Matching, DisagreementNamesBothValuesAndTheOddRankOnAllRanks) {
  shm::SlotRequest odd = h_.Dispatch(1);
  odd.dtype = 2;
  const auto submissions = h_.AnnounceAll({h_.Dispatch(0), odd, h_.Dispatch(2)});
  for (const Submission& submission : submissions) {
    EXPECT_EQ(h_.code(submission), Code::kInvalidArgument);
    EXPECT_THAT(h_.text(submission),
                AllOf(HasSubstr("[epd:INVALID_ARGUMENT] group=g epoch=3 rank="),
                      HasSubstr("phase=announce: "), HasSubstr("dtype"), HasSubstr("on ranks 0, 2"),
                      HasSubstr("on ranks 1;"), HasSubstr("rank=1 host=host1 pid=101")));
  }
}

TEST_F(Matching, EveryFieldOfTheFingerprintIsCompared) {
  const auto differs = [&](void (*change)(shm::SlotRequest&), const char* field) {
    ExchangeHarness h;
    h.StartTenant(h.Spec(3));
    shm::SlotRequest odd = h.Dispatch(2);
    change(odd);
    const auto submissions = h.AnnounceAll({h.Dispatch(0), h.Dispatch(1), odd});
    EXPECT_EQ(h.code(submissions[0]), Code::kInvalidArgument) << field;
    EXPECT_THAT(h.text(submissions[0]), HasSubstr(std::string("do not agree in ") + field + ":"));
  };
  differs([](shm::SlotRequest& r) { r.kind = shm::Kind::kCombineBackward; }, "kind");
  differs([](shm::SlotRequest& r) { r.dtype = 3; }, "dtype");
  differs([](shm::SlotRequest& r) { r.has_weights = 0; }, "has_weights");
  differs([](shm::SlotRequest& r) { r.top_k = 1; }, "top_k");
  differs([](shm::SlotRequest& r) { r.alignment = 8; }, "alignment");
  differs([](shm::SlotRequest& r) { r.row_bytes = 16; }, "row_bytes");
  differs([](shm::SlotRequest& r) { r.plan_id = 2; }, "plan_id");
  differs([](shm::SlotRequest& r) { r.spec_hash = 2; }, "spec_hash");
}

TEST_F(Matching, WithoutAMajorityNobodyIsBlamed) {
  ExchangeHarness h;
  h.StartTenant(h.Spec(2));
  shm::SlotRequest other = h.Request(1);
  other.top_k = 1;
  const auto submissions = h.AnnounceAll({h.Request(0), other});
  EXPECT_THAT(h.text(submissions[0]), AllOf(HasSubstr("1 on ranks 1"), HasSubstr("2 on ranks 0"),
                                            Not(HasSubstr("odd ones out"))));
}

TEST_F(Matching, NamesMatchOneByOneInAnyOrder) {
  shm::SlotRequest a[3] = {h_.Request(0), h_.Request(1), h_.Request(2)};
  for (auto& request : a) h_.SetName(request, "attention");
  shm::SlotRequest later = a[0];
  later.execution = 1;
  const Submission second = h_.Take(later);
  const Submission first = h_.Take(a[0]);
  h_.Take(a[1]);
  h_.Take(a[2]);
  EXPECT_EQ(h_.code(first), Code::kOk);
  EXPECT_FALSE(h_.answered(second));
}

TEST(MatchingGroups, GroupsOfTheSameSessionsShareOneArenaSet) {
  ExchangeHarness h;
  h.StartTenant(h.Spec(2), GroupId(7));
  h.StartTenant(h.Spec(2), GroupId(8));
  EXPECT_EQ(h.arenas.size(), 1u);
  EXPECT_THAT(h.ready, ElementsAre(Formation(1), Formation(1)));
}

TEST(MatchingGroups, ManyGroupsThatRunInTurnNeedTheStagingOfOne) {
  ExchangeHarness h;
  for (uint64_t g = 1; g <= 64; ++g) h.StartTenant(h.Spec(2), GroupId(g));
  for (uint64_t g = 1; g <= 64; ++g) {
    shm::SlotRequest requests[2] = {h.Dispatch(0), h.Dispatch(1)};
    for (auto& request : requests) request.group_id = g;
    const auto submissions = h.AnnounceAll({requests[0], requests[1]});
    const OperationId op = h.operation(submissions[0]);
    h.Finish(op);
  }
  EXPECT_EQ(h.exchange.staging().pool().peak_committed_bytes(), 2 * 8192u);
}

}  // namespace
}  // namespace epd
