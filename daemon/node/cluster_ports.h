// The two ways out of this node's control state to other epds; daemon/rpc implements them.
#pragma once

#include "absl/time/time.h"
#include "daemon/control/snapshots.h"

namespace epd {

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
};

// The ways from this epd, as a coordinator, to other nodes. Called on the control thread; does not
// block.
class ClusterStreams {
 public:
  virtual ~ClusterStreams() = default;
  // Hands `view` to the stream of view.node, or drops it when there is none.
  virtual void Send(const ClusterView& view) = 0;
};

}  // namespace epd
