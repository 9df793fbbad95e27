#include "daemon/worker/shell/membership.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace epd {

absl::StatusOr<Membership> MembershipOf(const TenantStart& start) {
  Membership membership{.in = {.communicator = start.communicator.value,
                               .epoch = start.epoch.value,
                               .workers = {},
                               .self = -1,
                               .num_ranks = start.members.size()},
                        .member_of_rank = {}};
  CommunicatorMember& in = membership.in;
  const NodeId& here =
      std::find_if(start.members.begin(), start.members.end(), [](const RankHolder& one) {
        return bool(one.session);
      })->node;
  for (const RankHolder& member : start.members) {
    const auto node =
        std::find_if(start.nodes.begin(), start.nodes.end(),
                     [&](const PeerWorker& one) { return one.id() == member.server(); });
    if (node == start.nodes.end()) {
      return absl::FailedPreconditionError(absl::StrCat(
          ToString(member.server()), " of rank ", member.rank.value, " has no run in this epoch"));
    }
    const auto known = std::find(in.workers.begin(), in.workers.end(), node->worker.value);
    const int index = static_cast<int>(known - in.workers.begin());
    if (known == in.workers.end()) {
      in.workers.push_back(node->worker.value);
      in.devices.push_back(member.node == here ? member.worker.cuda_device
                                               : CommunicatorMember::kElsewhere);
    }
    if (member.session) in.self = index;
    membership.member_of_rank.push_back(index);
  }
  return membership;
}

}  // namespace epd
