// Goal: of the nodes of a cluster the silent, the odd and those whose clock is off are named, and a slow answer is not taken for
// a wrong clock.
#include "daemon/doctor/cluster_doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace epd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

const absl::Time kAsked = absl::FromUnixSeconds(1000);

ClusterAnswers Good() {
  ClusterAnswers cluster;
  cluster.self = "a";
  cluster.version = "0.1.0";
  cluster.coordinator_setting = "10.0.0.1:7400";
  cluster.asked = kAsked;
  cluster.answered = kAsked + absl::Seconds(1);
  cluster.nodes = {{.node = "a",
                    .version = "0.1.0",
                    .clock = kAsked,
                    .address = "10.0.0.1:7400",
                    .wire_addresses = {"10.0.0.1:4000"}},
                   {.node = "b",
                    .version = "0.1.0",
                    .clock = kAsked + absl::Milliseconds(900),
                    .address = "10.0.0.2:7400",
                    .wire_addresses = {"10.0.0.2:4001", "10.0.0.2:4002"}}};
  return cluster;
}

// "nodes", "versions" or "clocks".
v1::Finding Find(const ClusterAnswers& cluster, const std::string& what) {
  for (const v1::Finding& finding : DiagnoseCluster(cluster)) {
    if (finding.what() == what) return finding;
  }
  ADD_FAILURE() << "nothing is said of " << what;
  return {};
}

TEST(ClusterDoctorTest, AGoodClusterHasNoProblem) {
  const std::vector<v1::Finding> findings = DiagnoseCluster(Good());
  EXPECT_THAT(findings, SizeIs(3));
  for (const v1::Finding& finding : findings)
    EXPECT_TRUE(finding.ok()) << finding.what() << ": " << finding.found();
}

TEST(ClusterDoctorTest, ANodeAloneHasNoneToCompareWith) {
  ClusterAnswers cluster = Good();
  cluster.nodes.pop_back();
  EXPECT_THAT(DiagnoseCluster(cluster), IsEmpty());
  cluster.problem = "the coordinator cannot be reached";
  EXPECT_THAT(Find(cluster, "nodes").found(), HasSubstr("cannot be reached"));
}

TEST(ClusterDoctorTest, ASilentNodeIsNamedWithWhyAndComparedWithNobody) {
  ClusterAnswers cluster = Good();
  cluster.nodes.push_back({.node = "c", .problem = "it is lost; last seen 40s ago"});
  EXPECT_EQ(Find(cluster, "nodes").found(), "node c: it is lost; last seen 40s ago");
  EXPECT_TRUE(Find(cluster, "versions").ok());
  EXPECT_TRUE(Find(cluster, "clocks").ok());
}

TEST(ClusterDoctorTest, VersionsAreListedWithTheirNodes) {
  ClusterAnswers cluster = Good();
  cluster.nodes.push_back({.node = "c", .version = "0.2.0"});
  cluster.nodes.push_back({.node = "d"});
  EXPECT_FALSE(Find(cluster, "versions").ok());
  EXPECT_EQ(Find(cluster, "versions").found(), "0.1.0 on a, b; 0.2.0 on c; an older one on d");
}

TEST(ClusterDoctorTest, AClockIsOffByWhatItIsOutsideOfTheQuestion) {
  ClusterAnswers cluster = Good();
  cluster.nodes[1].clock = cluster.answered + absl::Seconds(90);
  EXPECT_EQ(Find(cluster, "clocks").found(), "node b is 1m30s ahead of node a");
  cluster.nodes[1].clock = cluster.asked - absl::Seconds(6);
  EXPECT_EQ(Find(cluster, "clocks").found(), "node b is 6s behind node a");
  cluster.nodes[1].clock = cluster.asked - kMaxClockSkew + absl::Milliseconds(1);
  EXPECT_TRUE(Find(cluster, "clocks").ok());
  cluster.answered = cluster.asked + absl::Seconds(20);
  cluster.nodes[1].clock = cluster.asked + absl::Seconds(19);
  EXPECT_TRUE(Find(cluster, "clocks").ok()) << "a slow answer";
  EXPECT_THAT(Find(cluster, "clocks").found(), Not(HasSubstr("node b")));
}

TEST(ClusterDoctorTest, PortsAreThoseOfOthersOnce) {
  ClusterAnswers cluster = Good();
  cluster.nodes.push_back({.node = "c", .address = "0.0.0.0:7400", .wire_addresses = {"", "h:0"}});
  cluster.coordinator_setting = "10.0.0.2:7400";
  EXPECT_THAT(PortsOf(cluster), ElementsAre(PortToTry{"10.0.0.2:7400", "epd of node b"},
                                            PortToTry{"10.0.0.2:4001", "a worker of node b"},
                                            PortToTry{"10.0.0.2:4002", "a worker of node b"}));
  cluster.nodes.clear();
  EXPECT_THAT(PortsOf(cluster), ElementsAre(PortToTry{"10.0.0.2:7400", "the setting coordinator"}));
}

}  // namespace
}  // namespace epd
