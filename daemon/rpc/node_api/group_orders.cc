#include "daemon/rpc/node_api/group_orders.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/node/attach/codec.h"
#include "daemon/rpc/node_api/group_facts.h"

namespace epd {

absl::Time OrderDeadline(bool present, const google::protobuf::Duration& duration,
                         absl::Duration by_default) {
  const absl::Duration asked = present ? FromProto(duration) : by_default;
  return MonotonicNow() + std::clamp(asked, absl::ZeroDuration(), absl::Hours(24));
}

absl::Status CheckGroup(const Node& node, const std::string& name, uint64_t epoch) {
  for (const GroupStatus& group : KnownGroups(node)) {
    if (group.spec.name != name) continue;
    if (epoch == 0 || epoch == group.epoch.value) return absl::OkStatus();
    return absl::AbortedError(absl::StrCat("group=", name, ": got epoch ", epoch,
                                           ", expected the present one, ", group.epoch.value,
                                           "; look at the group again"));
  }
  return NoSuchGroup(node, name);
}

v1::Group GroupOrClosed(const Node& node, GroupId id, const std::string& name) {
  for (const GroupStatus& group : KnownGroups(node)) {
    if (group.id == id || (!id && group.spec.name == name)) return DescribeGroup(node, group);
  }
  v1::Group closed;
  closed.set_group_id(id.value);
  closed.mutable_spec()->set_name(name);
  closed.set_state(v1::GROUP_STATE_CLOSED);
  return closed;
}

}  // namespace epd
