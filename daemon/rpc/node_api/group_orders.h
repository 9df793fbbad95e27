// What CreateGroup, DrainGroup and CloseGroup have in common.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "daemon/node/node.h"
#include "daemon/rpc/node_api/group_facts.h"
#include "google/protobuf/duration.pb.h"
#include "proto/epd/v1/node.pb.h"

namespace epd {

// Until when an order that was given now is to be done. Absent or negative durations take
// `by_default`.
absl::Time OrderDeadline(bool present, const google::protobuf::Duration& duration,
                         absl::Duration by_default);

// OK when the group exists and, if `epoch` is not 0, is in it.
//   NOT_FOUND  no such group, or not any more
//   ABORTED    another epoch: names both
absl::Status CheckGroup(const Node& node, const std::string& name, uint64_t epoch);

// One tenant's id, or zero: all of them, when the request names none.
//   NOT_FOUND  the group has no such tenant
template <typename Request>
absl::StatusOr<GroupId> TenantOf(const Node& node, const Request& request) {
  if (!request.has_tenant()) return GroupId();
  for (const GroupStatus& group : KnownGroups(node)) {
    if (group.spec.name == request.name() && group.spec.tenant == request.tenant()) return group.id;
  }
  return absl::NotFoundError(absl::StrCat("group=", request.name(), " has no tenant \"",
                                          absl::CHexEscape(request.tenant()),
                                          "\"; see epctl groups"));
}

// The group by id or, when it is gone, what is left to say about it: name and CLOSED.
v1::Group GroupOrClosed(const Node& node, GroupId id, const std::string& name);

}  // namespace epd
