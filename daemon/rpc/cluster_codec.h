// Between control's snapshots and cluster.proto.
#pragma once

#include "absl/status/statusor.h"
#include "daemon/control/snapshots.h"
#include "proto/epd/v1/cluster.pb.h"

namespace epd {

// What epds say to each other: the versions that this one speaks.
inline constexpr uint32_t kMinClusterProtocol = 1;
inline constexpr uint32_t kMaxClusterProtocol = 2;  // 2: members in columns.

v1::NodeReport ToProto(const NodeReport& report);
// For a node that speaks up to `protocol`.
v1::ClusterView ToProto(const ClusterView& view, uint32_t protocol);

//   INVALID_ARGUMENT  a field makes no sense: names it and what was got
absl::StatusOr<NodeReport> FromProto(const v1::NodeReport& report);
absl::StatusOr<ClusterView> FromProto(const v1::ClusterView& view);

}  // namespace epd
