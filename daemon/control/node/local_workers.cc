#include "daemon/control/node/local_workers.h"

#include "daemon/core/check.h"

namespace epd {

LocalWorkers::LocalWorkers(const std::set<WorkerName>& names, Outbox& outbox) : outbox_(outbox) {
  for (const WorkerName& name : names) workers_[name].report.name = name;
}

void LocalWorkers::Fire(Worker& worker, WorkerEvent event) {
  const std::optional<WorkerState> next = kWorkerTransitions.Next(worker.state, event);
  EPD_CHECK(next.has_value());
  worker.state = *next;
  outbox_.MarkChanged();
}

void LocalWorkers::Add(const WorkerAdded& event) {
  const auto [worker, added] = workers_.try_emplace(event.name);
  if (!added) return;
  worker->second.report.name = event.name;
  outbox_.MarkChanged();
}

void LocalWorkers::Start(const WorkerStarted& event) {
  Worker& worker = workers_.at(event.report.name);
  Fire(worker, WorkerEvent::kStarted);
  worker.report = event.report;
}

bool LocalWorkers::End(const WorkerDied& event) {
  Worker& worker = workers_.at(event.name);
  if (event.worker && event.worker != worker.report.incarnation) return false;
  if (worker.report.down_because != event.cause.message()) {
    worker.report.down_because = std::string(event.cause.message());
    outbox_.MarkChanged();
  }
  if (worker.state == WorkerState::kDown) return false;  // A start that failed.
  Fire(worker, WorkerEvent::kDied);
  worker.report.incarnation = Incarnation{};
  return true;
}

bool LocalWorkers::IsUp(const WorkerName& name) const {
  const auto worker = workers_.find(name);
  return worker != workers_.end() && worker->second.state == WorkerState::kUp;
}

bool LocalWorkers::IsRun(const WorkerName& name, Incarnation worker) const {
  return IsUp(name) && workers_.at(name).report.incarnation == worker;
}

void LocalWorkers::PutInto(NodeReport& report) const {
  for (const auto& [name, worker] : workers_) {
    report.workers.push_back(worker.report);
    if (!name.on_gpu()) report.facts.nccl_version = worker.report.nccl_version;
  }
}

}  // namespace epd
