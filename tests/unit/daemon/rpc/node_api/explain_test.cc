// Goal: one culprit is named, with the evidence, from what the nodes of a cluster say.
#include "daemon/rpc/node_api/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace epd {
namespace {

using testing::AllOf;
using testing::HasSubstr;

v1::LocalExplanation FromNode(const std::string& node, v1::GroupState state) {
  v1::LocalExplanation out;
  out.set_node(node);
  out.mutable_group()->set_state(state);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    v1::Rank& added = *out.mutable_group()->add_ranks();
    added.set_rank(rank);
    added.set_node("n");
    added.set_host("h" + std::to_string(rank));
    added.set_pid(100 + static_cast<int32_t>(rank));
    added.set_client_name("job");
    added.set_phase("ready");
  }
  return out;
}

void AddOperation(v1::LocalExplanation& to, int64_t age_s, const std::vector<uint32_t>& late) {
  v1::OpenOperation& operation = *to.add_operations();
  operation.set_node(to.node());
  operation.set_kind("dispatch");
  operation.set_phase("announce");
  operation.set_key("program ab12 number 7");
  operation.mutable_age()->set_seconds(age_s);
  for (const uint32_t rank : late) operation.add_waiting_for(rank);
}

TEST(ExplainTest, TheRankThatMostOperationsWaitForIsToBlame) {
  v1::LocalExplanation a = FromNode("a", v1::GROUP_STATE_READY);
  v1::LocalExplanation b = FromNode("b", v1::GROUP_STATE_READY);
  AddOperation(a, 3, {0, 2});
  AddOperation(b, 12, {2});
  v1::ExplainGroupResponse out;
  Explain({a, b}, out);
  EXPECT_EQ(out.culprit(), "rank 2");
  EXPECT_THAT(
      out.evidence(),
      AllOf(HasSubstr("rank 2 (node n, host h2, pid 102, job) has not done 'announce' of "
                      "dispatch program ab12 number 7"),
            HasSubstr("ranks 0, 1 wait for it since 12s"), HasSubstr("2 of 2 open operations")));
  EXPECT_EQ(out.operations(0).node(), "b") << "oldest first";
}

TEST(ExplainTest, TheCulpritsLastOperationIsEvidenceAndThePastIsByRank) {
  v1::LocalExplanation a = FromNode("a", v1::GROUP_STATE_READY);
  v1::LocalExplanation b = FromNode("b", v1::GROUP_STATE_READY);
  AddOperation(a, 3, {2});
  for (const uint32_t rank : {2u, 0u}) {
    v1::RankPast& past = *(rank == 2 ? a : b).add_past();
    past.set_rank(rank);
    v1::PastOperation& last = *past.add_operations();
    last.set_kind("combine");
    last.set_key("program ab12 number 6");
    last.set_phase("done");
    last.mutable_age()->set_seconds(14);
  }
  v1::ExplainGroupResponse out;
  Explain({a, b}, out);
  EXPECT_THAT(out.evidence(), HasSubstr("the last that rank 2 began is combine program ab12 "
                                        "number 6, 14s ago, done"));
  ASSERT_EQ(out.past_size(), 2);
  EXPECT_EQ(out.past(0).rank(), 0u);
}

TEST(ExplainTest, LargeGroupsShowLessOfEachRank) {
  EXPECT_EQ(PastShown(2), 64u);
  EXPECT_EQ(PastShown(256), 64u);
  EXPECT_EQ(PastShown(1024), 16u);
  EXPECT_EQ(PastShown(100000), 4u);
}

TEST(ExplainTest, ADeadRankIsToBlameWhenTheGroupIsNotReady) {
  v1::LocalExplanation a = FromNode("a", v1::GROUP_STATE_DEGRADED);
  a.mutable_group()->mutable_ranks(1)->set_phase("dead");
  a.mutable_group()->mutable_last_error()->set_message("its socket closed");
  v1::ExplainGroupResponse out;
  Explain({a}, out);
  EXPECT_EQ(out.culprit(), "rank 1");
  EXPECT_THAT(out.evidence(), AllOf(HasSubstr("is dead"), HasSubstr("its socket closed")));
}

TEST(ExplainTest, ASilentNodeIsToBlameWhenNothingElseIs) {
  v1::ExplainGroupResponse out;
  out.add_unanswered("node b: it did not answer in time");
  Explain({FromNode("a", v1::GROUP_STATE_READY)}, out);
  EXPECT_EQ(out.culprit(), "node b");
}

TEST(ExplainTest, NobodyIsToBlameWhenNothingWaits) {
  v1::ExplainGroupResponse out;
  Explain({FromNode("a", v1::GROUP_STATE_READY)}, out);
  EXPECT_EQ(out.culprit(), "");
  EXPECT_THAT(out.evidence(), HasSubstr("no open operation waits"));
}

}  // namespace
}  // namespace epd
