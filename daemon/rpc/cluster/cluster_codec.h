// Between control's snapshots and cluster.proto.
#pragma once

#include <google/protobuf/unknown_field_set.h>

#include "absl/status/statusor.h"
#include "daemon/control/snapshots.h"
#include "proto/epd/v1/cluster.pb.h"

namespace epd {

// What epds say to each other: the versions that this one speaks.
inline constexpr uint32_t kMinClusterProtocol = 1;
inline constexpr uint32_t kMaxClusterProtocol = 2;  // 2: members in columns.

v1::NodeReport ToProto(const NodeReport& report);

// What all nodes of a formation are told alike (members, bases, workers), encoded once for all of
// them: most of the bytes that a coordinator sends. Remembers the last.
class EncodedFormations {
 public:
  // Adds it to `out`, in a form that is good for sending only: accessors do not show it.
  void Put(const GroupView& group, v1::ClusterGroup& out);

 private:
  SharedList<RankHolder> members_;
  SharedList<ExecutionBase> bases_;
  SharedList<ServingWorker> workers_;
  google::protobuf::UnknownFieldSet fields_;
};

// Makes it for a node that speaks up to `protocol`. With `formations` the message is good for sending only.
v1::ClusterView ToProto(const ClusterView& view, uint32_t protocol,
                        EncodedFormations* formations = nullptr);

//   INVALID_ARGUMENT  a field makes no sense: names it and what was got
absl::StatusOr<NodeReport> FromProto(const v1::NodeReport& report);
absl::StatusOr<ClusterView> FromProto(const v1::ClusterView& view);

}  // namespace epd
