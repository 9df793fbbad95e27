// The lives of a node's workers.
#pragma once

#include <map>

#include "daemon/control/membership_state.h"
#include "daemon/control/node/outbox.h"
#include "daemon/control/node_events.h"
#include "daemon/control/node_state.h"

namespace epd {

class LocalWorkers {
 public:
  LocalWorkers(const std::set<WorkerName>& names, Outbox& outbox);

  void Add(const WorkerAdded& event);
  void Start(const WorkerStarted& event);
  // Returns whether a run has ended; false: it was an earlier one, or never began.
  bool End(const WorkerDied& event);

  bool Has(const WorkerName& name) const { return workers_.count(name) > 0; }
  bool IsUp(const WorkerName& name) const;
  // Whether this is its present run.
  bool IsRun(const WorkerName& name, Incarnation worker) const;
  void PutInto(NodeReport& report) const;

  const std::map<WorkerName, LocalWorker>& all() const { return workers_; }
  void Restore(std::map<WorkerName, LocalWorker> workers) { workers_ = std::move(workers); }

 private:
  using Worker = LocalWorker;

  void Fire(Worker& worker, WorkerEvent event);

  Outbox& outbox_;
  std::map<WorkerName, Worker> workers_;
};

}  // namespace epd
