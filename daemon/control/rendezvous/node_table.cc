#include "daemon/control/rendezvous/node_table.h"

#include <algorithm>

namespace epd {

bool NodeTable::Connect(absl::Time now, const NodeId& id, Incarnation incarnation,
                        const NodeLink& link) {
  KnownNode& node = nodes_[id];
  const bool fresh = node.incarnation != incarnation;
  if (fresh) node = KnownNode{};
  node.incarnation = incarnation;
  node.last_seen = now;
  node.link = link;
  return fresh;
}

bool NodeTable::Accept(absl::Time now, const NodeReport& report) {
  const auto it = nodes_.find(report.node);
  if (it == nodes_.end() || it->second.incarnation != report.incarnation ||
      report.seq <= it->second.last_seq) {
    return false;
  }
  it->second.last_seq = report.seq;
  it->second.last_seen = now;
  it->second.lost = false;
  return true;
}

void NodeTable::Take(const NodeReport& report) {
  KnownNode& node = nodes_.at(report.node);
  node.taken_seq = report.seq;
  node.workers.clear();
  for (const WorkerReport& worker : report.workers) node.workers[worker.name] = worker;
  node.facts = report.facts;
  node.work.clear();
  for (const GroupWork& work : report.work) {
    GroupWork& known = node.work[{work.group, work.worker}] = work;
    if (report.coordinator != coordinator_) known.heard = Formation{};
  }
}

void NodeTable::Lose(const NodeId& id) {
  KnownNode& node = nodes_.at(id);
  node.lost = true;
  node.taken_seq = 0;
  node.workers.clear();
  node.work.clear();
}

void NodeTable::Look(absl::Time now) {
  const bool was_away = now > looked_at_ + 2 * LookEvery();
  looked_at_ = std::max(looked_at_, now);
  if (!was_away) return;
  for (auto& [id, node] : nodes_) {
    if (!node.lost) node.last_seen = now;
  }
}

absl::Time NodeTable::NextLook() const {
  return nodes_.empty() ? absl::InfiniteFuture() : looked_at_ + LookEvery();
}

std::vector<NodeId> NodeTable::Silent(absl::Time now) const {
  std::vector<NodeId> out;
  for (const auto& [id, node] : nodes_) {
    if (!node.lost && node.last_seen + silence_ <= now) out.push_back(id);
  }
  return out;
}

absl::Time NodeTable::NextSilence() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [id, node] : nodes_) {
    if (!node.lost) next = std::min(next, node.last_seen + silence_);
  }
  return next;
}

const KnownNode* NodeTable::Find(const NodeId& id) const {
  const auto it = nodes_.find(id);
  return it == nodes_.end() ? nullptr : &it->second;
}

const WorkerReport& NodeTable::Worker(const WorkerId& id) const {
  static const WorkerReport& down = *new WorkerReport();
  const KnownNode* node = Find(id.node);
  if (node == nullptr) return down;
  const auto it = node->workers.find(id.name);
  return it == node->workers.end() ? down : it->second;
}

WorkerRun NodeTable::Run(const WorkerId& id) const {
  return {At(id.node).incarnation, Worker(id).incarnation};
}

const GroupWork* NodeTable::Work(const WorkerId& id, GroupId group) const {
  const KnownNode* node = Find(id.node);
  if (node == nullptr) return nullptr;
  const auto it = node->work.find({group, id.name});
  return it == node->work.end() ? nullptr : &it->second;
}

const GroupWork* NodeTable::AnyWork(const NodeId& id, GroupId group) const {
  const KnownNode& node = At(id);
  const auto it = node.work.lower_bound({group, kCpuWorker});
  return it == node.work.end() || it->first.first != group ? nullptr : &it->second;
}

}  // namespace epd
