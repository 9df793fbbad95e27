// What this node's workers keep of who did what when in a group.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "daemon/node/node.h"
#include "proto/epd/v1/node.pb.h"

namespace epd {

// Whether somebody may ask this. INVALID_ARGUMENT: no group, or keep_for is not above zero and at most a minute.
absl::Status CheckTraceRequest(const v1::GetTraceRequest& request);

// Has the workers that serve the group ("": any) keep traces for a while, and gives `done` what they have; without those that do not answer
// soon. `done` is called on the control thread, within a second.
void TraceLocally(Node& node, const v1::GetTraceRequest& request,
                  std::function<void(v1::LocalTrace)> done);

// Any thread: the same. False: epd ends, or is overloaded.
bool AskTraces(Node& node, const v1::GetTraceRequest& request,
               std::function<void(v1::LocalTrace)> done);

}  // namespace epd
