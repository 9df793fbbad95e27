// Between what a node's control knows and HandoverControl of handover.proto.
#pragma once

#include "absl/status/statusor.h"
#include "daemon/control/node_state.h"
#include "proto/epd/v1/handover.pb.h"

namespace epd {

v1::HandoverControl ToProto(const NodeState& state);

//   DATA_LOSS  a field makes no sense, or lists that belong together differ in length: names it
absl::StatusOr<NodeState> FromProto(const v1::HandoverControl& in);

}  // namespace epd
