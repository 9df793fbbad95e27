// The two ways out of this node's control state to other epds; daemon/rpc implements them.
#pragma once

#include "daemon/control/snapshots.h"

namespace epd {

// The way to a coordinator in another epd. Called on the control thread; does not block.
class CoordinatorLink {
 public:
  virtual ~CoordinatorLink() = default;
  // Only the newest report matters; one that cannot be sent now may be dropped, since control
  // repeats it.
  virtual void Send(const NodeReport& report) = 0;
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
