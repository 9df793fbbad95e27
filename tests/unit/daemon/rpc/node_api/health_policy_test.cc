// Goal: a node that does not serve says so, and neither a group nor a tenant speaks for another.
#include "daemon/rpc/node_api/health_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace epd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

constexpr GroupState kReady = GroupState::kReady;

HealthFacts Healthy() {
  HealthFacts facts;
  facts.worker_stuck = absl::Seconds(30);
  facts.workers.push_back({.name = "the worker", .pid = 7, .running = true});
  return facts;
}

TEST(HealthPolicyTest, ANodeWhoseWorkerAnswersIsWell) {
  EXPECT_EQ(Judge(Healthy()).health, v1::HEALTH_OK);
  EXPECT_THAT(Judge(Healthy()).problems, IsEmpty());
  EXPECT_THAT(ServingByService(Healthy()), ElementsAre(Pair("", true), Pair("epd.v1.Node", true)));
}

TEST(HealthPolicyTest, ALateAnswerDegradesASilentWorkerStops) {
  HealthFacts facts = Healthy();
  facts.workers[0].unanswered = absl::Milliseconds(300);
  EXPECT_EQ(Judge(facts).health, v1::HEALTH_DEGRADED);
  EXPECT_TRUE(ServingByService(facts)[""]);
  facts.workers[0].unanswered = absl::Seconds(2);
  facts.workers[0].silent = true;
  EXPECT_EQ(Judge(facts).health, v1::HEALTH_UNHEALTHY);
  EXPECT_THAT(Judge(facts).problems,
              ElementsAre(HasSubstr("the worker (pid 7) has not answered for 2s")));
  EXPECT_FALSE(ServingByService(facts)[""]);
  facts.workers[0].waits_for = "memory of uid=1001";
  EXPECT_THAT(Judge(facts).problems,
              ElementsAre(HasSubstr("for 2s; it waits in the kernel for memory of uid=1001; it is "
                                    "replaced after 30s")));
  facts.workers[0].on_gpu = true;
  EXPECT_EQ(Judge(facts).health, v1::HEALTH_DEGRADED) << "the others go on";
}

TEST(HealthPolicyTest, AWorkerThatIsGoneStopsTheNodeOnlyWhenItStaysAway) {
  HealthFacts facts = Healthy();
  facts.workers[0] = {.name = "the worker", .down = absl::Seconds(1), .last_exit = "signal 9"};
  EXPECT_EQ(Judge(facts).health, v1::HEALTH_DEGRADED);
  facts.workers[0].down = absl::Seconds(11);
  EXPECT_EQ(Judge(facts).health, v1::HEALTH_UNHEALTHY);
}

TEST(HealthPolicyTest, ALostGroupOrCoordinatorDegradesTheNodeWhichServesOn) {
  HealthFacts facts = Healthy();
  facts.groups.push_back({.name = "g",
                          .tenant = "b",
                          .state = GroupState::kDegraded,
                          .cause = absl::UnavailableError("rank=3 is gone")});
  facts.no_coordinator = "no connection to the coordinator a:1";
  const NodeHealth judged = Judge(facts);
  EXPECT_EQ(judged.health, v1::HEALTH_DEGRADED);
  EXPECT_THAT(judged.problems, ElementsAre(HasSubstr("no connection to the coordinator a:1"),
                                           "group g tenant=b is DEGRADED: rank=3 is gone"));
  EXPECT_TRUE(ServingByService(facts)[""]);
}

TEST(HealthPolicyTest, ATenantsServiceIsItsOwnAndTheGroupsThatOfTheOneWithoutAName) {
  HealthFacts facts = Healthy();
  facts.groups = {{.name = "g", .tenant = "a", .state = kReady},
                  {.name = "g", .tenant = "b", .state = GroupState::kForming},
                  {.name = "h", .state = kReady}};
  std::map<std::string, bool> serving = ServingByService(facts);
  EXPECT_TRUE(serving["epd.group/g/a"]);
  EXPECT_FALSE(serving["epd.group/g/b"]);
  EXPECT_TRUE(serving["epd.group/g"]) << "one of its tenants is served";
  EXPECT_TRUE(serving["epd.group/h"]);
  facts.groups.push_back({.name = "g", .state = GroupState::kReforming});
  EXPECT_FALSE(ServingByService(facts)["epd.group/g"]) << "it is that tenant's own";
}

TEST(HealthPolicyTest, AReadyGroupWhoseWorkerIsSilentDoesNotServe) {
  HealthFacts facts = Healthy();
  facts.groups = {{.name = "g", .state = kReady, .stalled = true}, {.name = "h", .state = kReady}};
  std::map<std::string, bool> serving = ServingByService(facts);
  EXPECT_FALSE(serving["epd.group/g"]);
  EXPECT_TRUE(serving["epd.group/h"]);
}

}  // namespace
}  // namespace epd
