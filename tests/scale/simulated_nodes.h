// Many epds in one process, for measuring a large cluster on a small machine: the control code, the
// messages and the stream of a real epd each, over a connection of its own to a real coordinator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/control/node_control.h"
#include "daemon/rpc/cluster/coordinator_stream.h"
#include "proto/epd/v1/cluster.grpc.pb.h"

namespace epd::scale {

struct Traffic {
  size_t reports = 0;  // Of nodes to the coordinator.
  size_t views = 0;    // ... and back.
  size_t report_bytes = 0;
  size_t view_bytes = 0;
  size_t most_of_a_node = 0;  // Reports and views of the node that had the most.
};

// What is left out of a real epd: workers answer at once and serve nothing, clients only join, and
// there is no socket, log or other RPC. Used by one thread.
class SimulatedNodes {
 public:
  // Nodes [first_node, first_node + num_nodes) of a cluster with `ranks_per_node` ranks on each.
  struct Options {
    std::string coordinator;  // host:port
    std::string secret;       // The cluster's.
    size_t first_node = 0;
    size_t num_nodes = 1;
    size_t ranks_per_node = 8;
  };
  explicit SimulatedNodes(const Options& options);
  ~SimulatedNodes();

  //   DEADLINE_EXCEEDED  says how many nodes have heard of the coordinator
  absl::Status Connect(absl::Duration patience);
  // Every rank of these nodes joins the group, each from a session of its own; returns when all
  // have been told Joined, with one epoch and formation.
  //   DEADLINE_EXCEEDED  says how many ranks have joined
  //   INTERNAL           ranks were told different epochs, formations or members
  //   else               the error that a rank was told
  absl::Status Form(const std::string& group, uint32_t num_ranks, absl::Duration patience);

  // Since the last call.
  Traffic TakeTraffic();

 private:
  struct Node;
  struct Incoming {
    size_t node = 0;
    v1::ClusterView view;
    absl::Status ended;  // Not OK: the stream is over.
  };

  void Give(Node& node, const NodeEvent& event);
  void Run(Node& node, const NodeEffect& effect);
  void FromWorker(Node& node, const NodeEffect& effect);
  void SendReportOut(Node& node, const NodeReport& report);
  void TakeView(Node& node, const v1::ClusterView& message);
  // Handles what comes until `done` or the deadline.
  template <typename Done>
  absl::Status RunUntil(absl::Time deadline, Done done);
  void TickThoseDue(absl::Time now);

  const Options options_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::deque<std::pair<size_t, NodeEvent>> events_;  // Of workers, after the present one.
  size_t num_connected_ = 0;
  size_t num_joined_ = 0;
  absl::Status failure_;
  Epoch epoch_;
  Formation formation_;
  Traffic traffic_;
  absl::Time next_tick_ = absl::InfinitePast();

  absl::Mutex mutex_;
  std::deque<Incoming> incoming_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace epd::scale
