// The two ways out of this node's control state to other epds; daemon/rpc implements them.
#pragma once

#include <functional>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/control/snapshots.h"
#include "proto/epd/v1/cluster.pb.h"
#include "proto/epd/v1/trace.pb.h"

namespace epd {

// Called once, on the control thread.
using OnAsked = std::function<void(absl::StatusOr<v1::AskNodesResponse>)>;

// The way to a coordinator in another epd. Called on the control thread; does not block. What comes
// back is handed to Node::Handle as CoordinatorConnected, ViewReceived and CoordinatorLost.
class CoordinatorLink {
 public:
  virtual ~CoordinatorLink() = default;
  // Only the newest report matters; one that cannot be sent now is dropped, since control repeats
  // it.
  virtual void Send(const NodeReport& report) = 0;
  // Connects, and connects again with back-off; call at NextDeadline().
  virtual void Tick(absl::Time now) = 0;
  virtual absl::Time NextDeadline() const = 0;
  // Has the coordinator ask every node (Cluster.AskNodes).
  virtual void Ask(const v1::AskNodesRequest& request, OnAsked done) = 0;
  // What is known of the coordinator's clock, unset: nothing; and begins to look again.
  virtual std::optional<v1::ClockOffset> CompareClocks() { return std::nullopt; }
};

// The ways from this epd, as a coordinator, to other nodes. Called on the control thread; does not
// block.
class ClusterStreams {
 public:
  virtual ~ClusterStreams() = default;
  // Hands `view` to the stream of view.node, or drops it when there is none.
  virtual void Send(const ClusterView& view) = 0;
  // Asks every node, this one too, and answers within kAskPatience.
  virtual void Ask(const v1::AskNodesRequest& request, OnAsked done) = 0;
};
inline constexpr absl::Duration kAskPatience = absl::Milliseconds(1500);

}  // namespace epd
