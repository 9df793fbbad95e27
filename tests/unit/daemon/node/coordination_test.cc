// Goal: control's reports reach whoever coordinates, this node or another, through every change of
// that.
#include "daemon/node/coordination.h"

#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace epd {
namespace {

using testing::ElementsAre;
using testing::SizeIs;

const NodeId kSelf{"a"};

class FakeLink final : public CoordinatorLink {
 public:
  void Send(const NodeReport& report) override { sent.push_back(report.seq); }
  void Tick(absl::Time) override { ++ticks; }
  absl::Time NextDeadline() const override { return absl::InfiniteFuture(); }
  void Ask(const v1::AskNodesRequest&, OnAsked) override { ++questions; }

  std::vector<uint64_t> sent;
  int ticks = 0;
  int questions = 0;
};

class FakeStreams final : public ClusterStreams {
 public:
  void Send(const ClusterView& view) override { sent.push_back(view.node); }
  void Ask(const v1::AskNodesRequest&, OnAsked) override { ++questions; }

  std::vector<NodeId> sent;
  int questions = 0;
};

class CoordinationTest : public testing::Test {
 protected:
  CoordinationTest() { coordination_.SetAsking(streams_); }

  static Coordination::Options Options() {
    Coordination::Options options;
    options.self = kSelf;
    options.incarnation = Incarnation(7);
    options.node_silence = absl::InfiniteDuration();
    options.start_grace = absl::ZeroDuration();
    return options;
  }
  NodeReport Report(uint64_t seq) const {
    NodeReport report;
    report.node = kSelf;
    report.incarnation = Incarnation(7);
    report.seq = seq;
    return report;
  }
  static ClusterView ViewOf(const NodeId& node) {
    ClusterView view;
    view.node = node;
    return view;
  }
  template <typename Event>
  bool LastIs() const {
    return !events_.empty() && std::holds_alternative<Event>(events_.back());
  }

  const ThreadRole role_;
  std::vector<NodeEvent> events_;
  int effects_ = 0;
  int changes_ = 0;
  FakeLink link_;
  FakeStreams streams_;
  Coordination coordination_{
      Options(),
      role_,
      {[this](NodeEvent event) { events_.push_back(std::move(event)); },
       [this](const RendezvousEffect&) { ++effects_; }, [this] { ++changes_; }}};
};

TEST_F(CoordinationTest, ANodeThatCoordinatesFollowsItself) {
  coordination_.Start();
  EXPECT_TRUE(coordination_.is_here());
  EXPECT_TRUE(LastIs<CoordinatorConnected>());
  coordination_.Report(Report(1));
  EXPECT_GT(effects_, 0) << "its own coordinator answers with a view";
  EXPECT_EQ(changes_, 2);
  coordination_.Ask(v1::AskNodesRequest(), nullptr);
  EXPECT_EQ(streams_.questions, 1);
}

TEST_F(CoordinationTest, ANodeThatFollowsReportsToTheLinkOnly) {
  coordination_.Connect(&link_, nullptr);
  coordination_.Start();
  coordination_.Report(Report(3));
  EXPECT_FALSE(coordination_.is_here());
  EXPECT_THAT(link_.sent, ElementsAre(3u));
  EXPECT_EQ(effects_, 0);
  coordination_.Ask(v1::AskNodesRequest(), nullptr);
  EXPECT_EQ(link_.questions, 1);
  coordination_.TickLink(absl::UnixEpoch());
  EXPECT_EQ(link_.ticks, 1);
}

TEST_F(CoordinationTest, OwnViewsGoToControlAndOthersToTheirStreams) {
  coordination_.Show(ViewOf(NodeId{"b"}));  // Nobody listens.
  coordination_.Connect(nullptr, &streams_);
  coordination_.Show(ViewOf(NodeId{"b"}));
  EXPECT_THAT(streams_.sent, ElementsAre(NodeId{"b"}));
  coordination_.Show(ViewOf(kSelf));
  EXPECT_THAT(streams_.sent, SizeIs(1));
  EXPECT_TRUE(LastIs<ViewReceived>());
}

TEST_F(CoordinationTest, LeadingBeginsWithACoordinatorThatKnowsNothingAndEndsAtTheLink) {
  coordination_.Connect(&link_, &streams_);
  const Incarnation before = coordination_.rendezvous().incarnation();
  Leading how;
  how.floor = Epoch(100);
  coordination_.Lead(how);
  EXPECT_TRUE(coordination_.is_here());
  EXPECT_NE(coordination_.rendezvous().incarnation(), before);
  coordination_.Report(Report(1));
  EXPECT_TRUE(link_.sent.empty());
  coordination_.StopLeading(link_, absl::UnavailableError("another node leads"));
  EXPECT_TRUE(LastIs<CoordinatorLost>());
  coordination_.Report(Report(2));
  EXPECT_THAT(link_.sent, ElementsAre(2u));
}

TEST_F(CoordinationTest, ItResignsOnceWhenItsEpochsAreUsedUp) {
  int resigned = 0;
  Leading how;
  how.resign_at = Epoch();  // At once.
  how.resign = [&] { ++resigned; };
  coordination_.Lead(how);
  EXPECT_EQ(resigned, 1);
  coordination_.Report(Report(1));
  EXPECT_EQ(resigned, 1);
}

}  // namespace
}  // namespace epd
