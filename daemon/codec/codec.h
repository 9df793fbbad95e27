// Between protos and the values of control, for what every boundary shares.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/group_spec.h"
#include "daemon/core/rank_holder.h"
#include "google/protobuf/duration.pb.h"
#include "proto/epd/v1/attach.pb.h"

namespace epd {

// Both ways the text is made clean (text.h), of at most limits::kErrorBytes.
v1::Status ToProto(const absl::Status& status);
absl::Status FromProto(const v1::Status& status);

// The answer to a Join that has failed.
v1::ServerMessage JoinFailed(uint64_t request, const absl::Status& status);

google::protobuf::Duration ToProto(absl::Duration duration);
absl::Duration FromProto(const google::protobuf::Duration& duration);

v1::GroupSpec ToProto(const GroupSpec& spec);

// The fields by which every message names a rank's holder.
template <typename Message>
void PutHolder(const RankHolder& holder, Message& out) {
  out.set_rank(holder.rank.value);
  out.set_node(holder.node.value);
  out.set_host(holder.host);
  out.set_pid(holder.pid);
  out.set_client_name(holder.client_name);
}

// What unset fields of a spec stand for.
struct SpecDefaults {
  Deadlines deadlines;
  Executor executor = Executor::kDefault;
};

// Every default filled in, not yet validated (control does that).
//   INVALID_ARGUMENT  an enum value or a deadline that cannot be represented: names the field
absl::StatusOr<GroupSpec> FromProto(const v1::GroupSpec& spec, const SpecDefaults& defaults);

}  // namespace epd
