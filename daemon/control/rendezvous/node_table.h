// The nodes that the coordinator knows: which run of each, whether it lives, and what it last said
// of its workers and their work.
#pragma once

#include "daemon/control/rendezvous.h"

namespace epd {

struct KnownNode {
  Incarnation incarnation;
  NodeLink link;
  uint64_t last_seq = 0;
  // Of the last report that was not only kept; zero: all that it said is forgotten.
  uint64_t taken_seq = 0;
  absl::Time last_seen;
  bool lost = false;
  std::map<WorkerName, WorkerReport> workers;
  NodeFacts facts;
  std::map<std::pair<GroupId, WorkerName>, GroupWork> work;
};

// The run of a worker that serves ranks in an epoch.
struct WorkerRun {
  Incarnation node;
  Incarnation worker;  // Zero: not up yet.

  friend bool operator==(const WorkerRun&, const WorkerRun&) = default;
};

class NodeTable {
 public:
  // A node that says nothing for `silence` is lost. A coordinator that did not run for a while, stopped or
  // starved, hears first what was said meanwhile: nobody's silence counts from before.
  NodeTable(Incarnation coordinator, absl::Duration silence)
      : coordinator_(coordinator), silence_(silence) {}

  // Returns whether it is another run of the node than before, of which nothing is known yet.
  bool Connect(absl::Time now, const NodeId& id, Incarnation incarnation, const NodeLink& link);
  // Whether the report is of the connected run and newer than the last; then the node lives.
  bool Accept(absl::Time now, const NodeReport& report);
  // Replaces what was known by what the report says.
  void Take(const NodeReport& report);
  // Forgets its workers and their work.
  void Lose(const NodeId& id);

  // The coordinator runs: to be called with whatever it does, and at NextLook() at the latest.
  void Look(absl::Time now);
  absl::Time NextLook() const;
  // That have said nothing for too long.
  std::vector<NodeId> Silent(absl::Time now) const;
  absl::Time NextSilence() const;
  absl::Duration silence() const { return silence_; }

  const std::map<NodeId, KnownNode>& all() const { return nodes_; }
  const KnownNode* Find(const NodeId& id) const;
  const KnownNode& At(const NodeId& id) const { return nodes_.at(id); }
  // Down, without anything said, where it has not reported.
  const WorkerReport& Worker(const WorkerId& id) const;
  WorkerRun Run(const WorkerId& id) const;  // Of a known node.
  const GroupWork* Work(const WorkerId& id, GroupId group) const;
  // Of one of its workers: what the node says of itself it says with each.
  const GroupWork* AnyWork(const NodeId& id, GroupId group) const;

 private:
  absl::Duration LookEvery() const { return silence_ / 6; }

  Incarnation coordinator_;
  absl::Duration silence_;
  absl::Time looked_at_ = absl::InfinitePast();
  std::map<NodeId, KnownNode> nodes_;
};

}  // namespace epd
