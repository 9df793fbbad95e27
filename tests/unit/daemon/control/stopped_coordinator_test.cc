// Goal: a coordinator that did not run for a while blames nobody for it, and one that ran loses who is silent, on time.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/daemon/control/small_cluster.h"

namespace epd {
namespace {

const absl::Duration kSilence = RendezvousOptions().node_silence;
constexpr absl::Duration kTick = absl::Milliseconds(1);

class StoppedCoordinator : public testing::Test {
 protected:
  StoppedCoordinator() {
    coordinator_.ConnectNode(now_, NodeId{"n0"}, Incarnation{7});
    Report();
  }

  void Report() {
    NodeReport report;
    report.node = NodeId{"n0"};
    report.incarnation = Incarnation{7};
    report.seq = ++seq_;
    coordinator_.TakeReport(now_, report);
  }
  // Runs all deadlines on the way.
  void RunUntil(absl::Time until) {
    while (coordinator_.NextDeadline() <= until) {
      now_ = std::max(now_, coordinator_.NextDeadline());
      coordinator_.Tick(now_);
    }
    now_ = until;
  }
  bool Lost() const { return coordinator_.Nodes().at(0).lost; }

  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  uint64_t seq_ = 0;
  Rendezvous coordinator_{RendezvousOptions()};
};

TEST_F(StoppedCoordinator, LosesNobodyWhomItCouldNotHear) {
  RunUntil(now_ + kSilence / 2);
  now_ += 3 * kSilence;  // It does not run.
  coordinator_.Tick(now_);
  EXPECT_FALSE(Lost());
  Report();
  RunUntil(now_ + kSilence - kTick);
  EXPECT_FALSE(Lost());
}

TEST_F(StoppedCoordinator, LosesAfterwardsWhoSaysNothing) {
  now_ += 3 * kSilence;
  coordinator_.Tick(now_);
  const absl::Time again = now_;
  RunUntil(again + kSilence - kTick);
  EXPECT_FALSE(Lost());
  RunUntil(again + kSilence);
  EXPECT_TRUE(Lost());
}

TEST_F(StoppedCoordinator, OneThatRunsLosesASilentNodeOnTime) {
  const absl::Time heard = now_;
  RunUntil(heard + kSilence - kTick);
  EXPECT_FALSE(Lost());
  RunUntil(heard + kSilence);
  EXPECT_TRUE(Lost());
}

}  // namespace
}  // namespace epd
