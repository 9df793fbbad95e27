// Who serves a rank, and the one form in which messages name it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "daemon/core/ids.h"
#include "daemon/core/worker_name.h"

namespace epd {

// One worker of one node: what serves a rank, and a member of its group's communicator.
struct WorkerId {
  NodeId node;
  WorkerName name;

  friend auto operator<=>(const WorkerId&, const WorkerId&) = default;
};

// "node a7 cuda:1".
std::string ToString(const WorkerId& worker);

// The holder of one rank of a group.
struct RankHolder {
  Rank rank;
  NodeId node;
  SessionId session;         // Of that node's epd.
  uint32_t arena_index = 0;  // This is the j-th rank of its session in the group.
  std::string host;
  int32_t pid = 0;
  std::string client_name;
  std::string client_version = {};
  WorkerName worker = {};  // Of its node, which serves it.
  // When its process started, in seconds of Unix time; 0: nobody said.
  int64_t started = 0;

  WorkerId server() const { return {node, worker}; }
  friend bool operator==(const RankHolder&, const RankHolder&) = default;
};

// "rank=2 host=a7 pid=4711 phase=arrived", the form that every message of epd uses.
std::string Describe(const RankHolder& holder, const std::string& phase);

// "the worker of node a7 cuda:1 host=h7, which serves ranks=2-3,", by those of a group's members that it serves.
std::string DescribeWorker(const WorkerId& worker, const std::vector<RankHolder>& members);

// UNAVAILABLE: what every rank of a group hears once a worker that serves it is gone, whoever tells it. `who` is
// DescribeWorker's text; the ranks' processes may well live.
absl::Status WorkerGone(absl::string_view who, absl::string_view why);

// "0-3, 7" for {0, 1, 2, 3, 7}; `ranks` need not be sorted. "none" when empty.
std::string DescribeRanks(std::vector<Rank> ranks);

}  // namespace epd
