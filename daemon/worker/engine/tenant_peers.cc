#include "daemon/worker/engine/tenant_peers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace epd {

bool TenantPeers::Serves(Incarnation node) const {
  return std::any_of(nodes.begin(), nodes.end(),
                     [node](const PeerWorker& known) { return known.worker == node; });
}

std::vector<Rank> TenantPeers::RanksOf(Incarnation node) const {
  std::vector<Rank> ranks;
  for (uint32_t r = 0; r < node_of_rank.size(); ++r) {
    if (node_of_rank[r] == node) ranks.push_back(Rank(r));
  }
  return ranks;
}

absl::StatusOr<TenantPeers> MakePeers(const TenantStart& start, Incarnation self) {
  if (start.on_device() && start.spec.executor == Executor::kClient) {
    return absl::UnimplementedError(
        "ranks of this group are on several devices or nodes, and with executor client each rank's "
        "kernels read the others' staging, which must be on one device; form the group with "
        "executor worker, or on one device");
  }
  TenantPeers peers;
  peers.self = self;
  peers.nodes = start.nodes;
  for (const RankHolder& member : start.members) {
    const auto node =
        std::find_if(start.nodes.begin(), start.nodes.end(),
                     [&](const PeerWorker& known) { return known.id() == member.server(); });
    if (node == start.nodes.end() || node->address.empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          ToString(member.server()), " of rank ", member.rank.value,
          " takes no streams from other nodes; start its epd with --wire_listen=host:port, "
          "and with TLS or insecure=yes unless that is a loopback address; its log says why"));
    }
    peers.node_of_rank.push_back(node->worker);
  }
  peers.leader = peers.node_of_rank[0];
  if (!peers.Serves(self)) {
    return absl::FailedPreconditionError("the group was formed for an earlier worker of this node");
  }
  return peers;
}

}  // namespace epd
