#include "daemon/control/rendezvous/cluster_group.h"

#include "absl/strings/str_cat.h"

namespace epd {

std::vector<WorkerName> ClusterCommunicator::WorkersOn(const NodeId& node) const {
  std::vector<WorkerName> out;
  for (auto it = workers.lower_bound({node, kCpuWorker}); it != workers.end(); ++it) {
    if (it->first.node != node) break;
    out.push_back(it->first.name);
  }
  return out;
}

void ClusterCommunicator::Clear() {
  const GroupId kept = id;
  *this = ClusterCommunicator{};
  id = kept;
}

bool ClusterCommunicator::IdStays() const {
  return workers.size() > 1 && workers.begin()->first.node == workers.rbegin()->first.node;
}

std::set<ClaimKey> GroupRanks::members() const {
  std::set<ClaimKey> out;
  for (const auto& [rank, key] : holders) out.insert(key);
  return out;
}

std::vector<Rank> ClusterGroup::missing() const {
  std::vector<Rank> out;
  for (Rank rank{0}; rank.value < spec.num_ranks; ++rank.value) {
    if (ranks.holders.count(rank) == 0) out.push_back(rank);
  }
  return out;
}

std::vector<RankHolder> ClusterGroup::former() const {
  std::vector<RankHolder> out;
  for (const auto& [rank, holder] : ranks.dead) out.push_back(holder.who);
  return out;
}

std::string Label(const ClusterGroup& group) {
  return absl::StrCat("group=", Title(group.spec), " epoch=", group.epoch.value);
}

}  // namespace epd
