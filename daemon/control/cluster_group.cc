#include "daemon/control/cluster_group.h"

namespace epd {

WorkerName Claim::WorkerOf(size_t index_of_rank) const {
  if (workers.empty()) return kCpuWorker;
  return index_of_rank < workers.size() ? workers[index_of_rank] : workers.front();
}

std::vector<WorkerName> ClusterCommunicator::WorkersOn(const NodeId& node) const {
  std::vector<WorkerName> out;
  for (auto it = workers.lower_bound({node, kCpuWorker}); it != workers.end(); ++it) {
    if (it->first.node != node) break;
    out.push_back(it->first.name);
  }
  return out;
}

bool ClusterCommunicator::IdStays() const {
  return workers.size() > 1 && workers.begin()->first.node == workers.rbegin()->first.node;
}

}  // namespace epd
