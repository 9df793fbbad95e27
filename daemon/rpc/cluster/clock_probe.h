// Compares this node's clock with its coordinator's, while somebody wants traces.
#pragma once

#include <memory>

#include "absl/time/time.h"
#include "daemon/node/loop/event_loop.h"
#include "daemon/rpc/cluster/clock_offset.h"
#include "daemon/rpc/cluster/cluster_link.h"

namespace epd {

// Control thread; the times themselves are taken where gRPC sends and hears.
class ClockProbe {
 public:
  // Both outlive this.
  ClockProbe(ClusterLink& link, EventLoop& loop) : link_(link), loop_(loop) {}

  // Begins some questions, one after the other, unless they are under way. Blocks nothing; a coordinator that does not know the
  // question, or does not answer it, leaves the estimate as it is.
  void Ask();
  std::optional<ClockOffset::Estimate> Best() const;
  // Unix time at which the coordinator's clock was 0, as it said last.
  int64_t reference_epoch_ns() const { return reference_epoch_ns_; }

 private:
  void AskOnce(int num_left);

  ClusterLink& link_;
  EventLoop& loop_;
  ClockOffset offset_;
  bool asking_ = false;
  int64_t reference_epoch_ns_ = 0;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);  // Answers look whether this is gone.
};

// CLOCK_MONOTONIC.
int64_t MonotonicNanos();

}  // namespace epd
