// What happens when an operation's deadline passes: who is late is named, then the generation ends; who holds on too
// long loses its session.
#pragma once

#include <vector>

#include "absl/time/time.h"
#include "daemon/worker/engine/admission_queue.h"
#include "daemon/worker/engine/effects.h"
#include "daemon/worker/engine/failures.h"
#include "daemon/worker/engine/leader_protocol.h"
#include "daemon/worker/engine/operation.h"
#include "daemon/worker/engine/operation_phases.h"
#include "daemon/worker/engine/operation_table.h"

namespace epd {

// Owns nothing: deadlines are the table's, and set with each phase. Not thread-safe.
class DeadlineWatch {
 public:
  DeadlineWatch(OperationTable& table, OperationPhases& phases, const AdmissionQueue& queue,
                Failures& failures, LeaderProtocol& leader, EngineEvent& event)
      : table_(table),
        phases_(phases),
        queue_(queue),
        failures_(failures),
        leader_(leader),
        event_(event) {}

  // Carries out those that have passed.
  void Tick();

 private:
  void HandleDeadline(Operation& operation);
  void LookAtGathering(Operation& operation);
  void WarnOfAbsent(const Operation& operation, absl::Duration age);

  OperationTable& table_;
  OperationPhases& phases_;
  const AdmissionQueue& queue_;
  Failures& failures_;
  LeaderProtocol& leader_;
  EngineEvent& event_;
};

}  // namespace epd
