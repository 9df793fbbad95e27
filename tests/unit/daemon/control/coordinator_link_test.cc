// Goal: a node believes only newer views of the coordinator that it follows, and tells the next one
// what earlier ones gave out.
#include "daemon/control/node/coordinator_link.h"

#include <gtest/gtest.h>

namespace epd {
namespace {

constexpr Incarnation kFirst{1}, kSecond{2};

NodeOptions Options() {
  NodeOptions options;
  options.node = NodeId{"n"};
  options.incarnation = Incarnation{9};
  return options;
}

ClusterView View(Incarnation coordinator, uint64_t seq, uint64_t report_seq) {
  ClusterView view;
  view.coordinator = coordinator;
  view.seq = seq;
  view.node = NodeId{"n"};
  view.node_incarnation = Incarnation{9};
  view.report_seq = report_seq;
  return view;
}

TEST(CoordinatorLinkTest, ViewsCountOnceInOrderAndOfTheFollowedCoordinatorOnly) {
  CoordinatorLink link(Options());
  link.Connect(kFirst);
  EXPECT_FALSE(link.Accept(View(kSecond, 1, 1))) << "not the one that it follows";
  EXPECT_TRUE(link.Accept(View(kFirst, 5, 1)));
  EXPECT_FALSE(link.Accept(View(kFirst, 5, 1))) << "repeated";
  EXPECT_FALSE(link.Accept(View(kFirst, 4, 1))) << "older";
  ClusterView other = View(kFirst, 6, 1);
  other.node_incarnation = Incarnation{8};
  EXPECT_FALSE(link.Accept(other)) << "for an earlier run of this node";
  link.Connect(kSecond);
  EXPECT_TRUE(link.Accept(View(kSecond, 1, 1))) << "each coordinator counts by itself";
}

TEST(CoordinatorLinkTest, AGreetingSaysNothingAndIsNotTakenForAnAnswer) {
  CoordinatorLink link(Options());
  link.Connect(kFirst);
  EXPECT_FALSE(link.Accept(View(kFirst, 1, /*report_seq=*/0)));
  EXPECT_EQ(link.reported_to(), Incarnation{});
  EXPECT_TRUE(link.Accept(View(kFirst, 2, 1)));
  EXPECT_EQ(link.reported_to(), kFirst);
}

TEST(CoordinatorLinkTest, AReportCarriesTheHighestEpochAndIsDueAfterTheInterval) {
  CoordinatorLink link(Options());
  EXPECT_EQ(link.next_report(), absl::InfiniteFuture()) << "nobody is there";
  link.Connect(kFirst);
  link.Hear(Epoch{4}, Formation{9});
  link.Hear(Epoch{3}, Formation{10});
  EXPECT_EQ(link.next_seq(), 1u);
  const NodeReport report = link.Begin(absl::UnixEpoch());
  EXPECT_EQ(report.seq, 1u);
  EXPECT_EQ(report.max_epoch, Epoch{4});
  EXPECT_EQ(report.max_formation, Formation{10});
  EXPECT_EQ(link.next_report(), absl::UnixEpoch() + Options().report_interval);
  link.Lose(absl::UnavailableError("gone"));
  EXPECT_EQ(link.next_report(), absl::InfiniteFuture());
}

TEST(CoordinatorLinkTest, WhyThereIsNoneIsTheLastCauseUntilThereIsOne) {
  CoordinatorLink link(Options());
  EXPECT_EQ(link.why_not(), "it cannot be reached") << "nobody has said anything yet";
  link.Lose(absl::UnavailableError("no coordinator yet"));
  link.Lose(absl::UnavailableError("etcd refuses writes"));
  EXPECT_EQ(link.why_not(), "etcd refuses writes");
  link.Connect(kFirst);
  EXPECT_EQ(link.why_not(), "");
}

}  // namespace
}  // namespace epd
