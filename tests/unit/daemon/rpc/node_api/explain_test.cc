// Goal: one culprit is named, with the evidence, from what the nodes of a cluster say.
#include "daemon/rpc/node_api/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace epd {
namespace {

using testing::AllOf;
using testing::HasSubstr;

v1::Group& AddTenant(v1::LocalExplanation& to, const std::string& tenant, v1::GroupState state,
                     int32_t first_pid) {
  v1::Group& group = *to.add_tenants();
  group.mutable_spec()->set_tenant(tenant);
  group.set_state(state);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    v1::Rank& added = *group.add_ranks();
    added.set_rank(rank);
    added.set_node("n");
    added.set_host("h" + std::to_string(rank));
    added.set_pid(first_pid + static_cast<int32_t>(rank));
    added.set_client_name("job");
    added.set_phase("ready");
  }
  return group;
}

v1::LocalExplanation FromNode(const std::string& node, v1::GroupState state) {
  v1::LocalExplanation out;
  out.set_node(node);
  AddTenant(out, "", state, 100);
  return out;
}

v1::ExplainGroupResponse Explained(const std::vector<v1::LocalExplanation>& nodes,
                                   const std::optional<std::string>& tenant = std::nullopt) {
  v1::ExplainGroupResponse out;
  Explain(nodes, tenant, out);
  return out;
}

v1::OpenOperation& AddOperation(v1::LocalExplanation& to, int64_t age_s,
                                const std::vector<uint32_t>& late) {
  v1::OpenOperation& operation = *to.add_operations();
  operation.set_node(to.node());
  operation.set_kind("dispatch");
  operation.set_phase("announce");
  operation.set_key("program ab12 number 7");
  operation.mutable_age()->set_seconds(age_s);
  for (const uint32_t rank : late) operation.add_waiting_for(rank);
  return operation;
}

TEST(ExplainTest, TheRankThatMostOperationsWaitForIsToBlame) {
  v1::LocalExplanation a = FromNode("a", v1::GROUP_STATE_READY);
  v1::LocalExplanation b = FromNode("b", v1::GROUP_STATE_READY);
  AddOperation(a, 3, {0, 2});
  AddOperation(b, 12, {2});
  const v1::ExplainGroupResponse out = Explained({a, b});
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
  const v1::ExplainGroupResponse out = Explained({a, b});
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
  a.mutable_tenants(0)->mutable_ranks(1)->set_phase("dead");
  a.mutable_tenants(0)->mutable_last_error()->set_message("its socket closed");
  const v1::ExplainGroupResponse out = Explained({a});
  EXPECT_EQ(out.culprit(), "rank 1");
  EXPECT_THAT(out.evidence(), AllOf(HasSubstr("is dead"), HasSubstr("its socket closed")));
}

TEST(ExplainTest, ASilentNodeIsToBlameWhenNothingElseIs) {
  v1::ExplainGroupResponse out;
  out.add_unanswered("node b: it did not answer in time");
  Explain({FromNode("a", v1::GROUP_STATE_READY)}, std::nullopt, out);
  EXPECT_EQ(out.culprit(), "node b");
}

TEST(ExplainTest, NobodyIsToBlameWhenNothingWaits) {
  const v1::ExplainGroupResponse out = Explained({FromNode("a", v1::GROUP_STATE_READY)});
  EXPECT_EQ(out.culprit(), "");
  EXPECT_THAT(out.evidence(), HasSubstr("no open operation waits"));
}

TEST(ExplainTest, RanksThatExchangeWaitForEachOtherAndNobodyIsToBlame) {
  v1::LocalExplanation a = FromNode("a", v1::GROUP_STATE_READY);
  AddOperation(a, 0, {1}).mutable_age()->set_nanos(300'000'000);
  const v1::ExplainGroupResponse out = Explained({a});
  EXPECT_EQ(out.culprit(), "") << out.evidence();
  EXPECT_EQ(out.operations_size(), 1);
}

// Two tenants; rank 1 of "b" is late, and rank 1 of "a" is another process.
v1::LocalExplanation WithLateTenant() {
  v1::LocalExplanation node;
  node.set_node("a");
  AddTenant(node, "a", v1::GROUP_STATE_READY, 100);
  AddTenant(node, "b", v1::GROUP_STATE_READY, 200);
  AddOperation(node, 0, {1}).set_tenant("a");
  AddOperation(node, 7, {1}).set_tenant("b");
  for (const std::string tenant : {"a", "b"}) {
    v1::RankPast& past = *node.add_past();
    past.set_rank(1);
    past.set_tenant(tenant);
    past.add_operations()->set_key("last of " + tenant);
  }
  return node;
}

TEST(ExplainTest, TheProcessOfTheTenantThatWaitsIsToBlameAndNotItsNamesake) {
  const v1::ExplainGroupResponse out = Explained({WithLateTenant()});
  EXPECT_EQ(out.culprit(), "rank 1 of tenant b");
  EXPECT_THAT(out.evidence(), AllOf(HasSubstr("pid 201"), HasSubstr("last of b"),
                                    HasSubstr("1 of 1 open operations")));
  EXPECT_EQ(out.group().spec().tenant(), "b");
  EXPECT_EQ(out.tenants_size(), 2);
}

TEST(ExplainTest, OneTenantIsExplainedAlone) {
  const v1::ExplainGroupResponse out = Explained({WithLateTenant()}, "a");
  EXPECT_EQ(out.culprit(), "") << out.evidence();
  ASSERT_EQ(out.tenants_size(), 1);
  EXPECT_EQ(out.operations_size(), 1);
  EXPECT_EQ(out.past_size(), 1);
}

TEST(ExplainTest, ADeadRankOfAnotherTenantIsNamedWithItsTenant) {
  v1::LocalExplanation node;
  AddTenant(node, "a", v1::GROUP_STATE_READY, 100);
  v1::Group& b = AddTenant(node, "b", v1::GROUP_STATE_DEGRADED, 200);
  b.mutable_ranks(0)->set_phase("dead");
  AddOperation(node, 0, {0}).set_tenant("a");
  const v1::ExplainGroupResponse out = Explained({node});
  EXPECT_EQ(out.culprit(), "rank 0 of tenant b");
  EXPECT_THAT(out.evidence(), HasSubstr("pid 200"));
}

TEST(ExplainTest, AWorkerThatDoesNotAnswerIsToBlameAndNotTheRanksThatItServes) {
  v1::LocalExplanation a = FromNode("a", v1::GROUP_STATE_READY);
  AddOperation(a, 5, {1, 2});
  v1::SilentWorker& worker = *a.add_silent_workers();
  worker.set_node("b");
  worker.set_device("cpu");
  worker.set_pid(77);
  worker.mutable_silence()->set_seconds(5);
  worker.add_tenants("");
  const v1::ExplainGroupResponse out = Explained({a});
  EXPECT_EQ(out.culprit(), "worker b cpu");
  EXPECT_THAT(out.evidence(), AllOf(HasSubstr("pid 77"), HasSubstr("5s")));
}

}  // namespace
}  // namespace epd
