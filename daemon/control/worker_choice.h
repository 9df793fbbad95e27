// Which workers of a node serve a Join.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/core/group_spec.h"
#include "daemon/core/worker_name.h"

namespace epd {

// The node's GPUs that groups may be served on.
struct ServedGpus {
  std::set<WorkerName> workers = {};  // That there are.
  // Of those that run: their GPUs' ids in hexadecimal digits.
  std::map<WorkerName, std::string> uuids = {};
  bool others = false;        // A GPU without a worker gets one when a rank is on it.
  std::string why_none = {};  // Where there are none and none may come.
};

// One for each rank of a Join, or one for all. A group's backend says what kind of worker; which GPU's,
// the device of the rank ("cuda:1", or "GPU-" and the first digits of its id, as the Join names them; other
// words name none), and where no rank names one the only GPU that has a worker, or cuda:0 where none has one
// yet. `devices`: of the ranks, or none.
//   FAILED_PRECONDITION  no GPU is served, or not the one that a rank is on
//   INVALID_ARGUMENT     a rank names no device, and others do or several have a worker
absl::StatusOr<std::vector<WorkerName>> ChooseWorkers(const GroupSpec& spec,
                                                      const std::vector<std::string>& devices,
                                                      const ServedGpus& gpus);

}  // namespace epd
