// One operation's way through its phases, what its ranks are answered on it, and its end.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/ids.h"
#include "daemon/worker/engine/admission_queue.h"
#include "daemon/worker/engine/effects.h"
#include "daemon/worker/engine/operation.h"
#include "daemon/worker/engine/operation_figures.h"
#include "daemon/worker/engine/operation_table.h"
#include "daemon/worker/engine/operation_traces.h"
#include "daemon/worker/engine/stream_sites.h"
#include "daemon/worker/engine/submission.h"
#include "daemon/worker/engine/tenant_table.h"
#include "daemon/worker/staging/staging.h"

namespace epd {

// The only writer of Operation::phase. An outcome is decided once, recorded before anybody is told, and the same for
// every rank. Owns nothing but its limits: what a phase changes is the other parts'. Not thread-safe.
class OperationPhases {
 public:
  struct Parts {
    OperationTable& table;
    StreamSites& sites;
    AdmissionQueue& queue;
    TenantTable& tenants;
    Staging& staging;
    OperationFigures& figures;
    OperationTraces& traces;
    EngineEvent& event;
  };
  // How long a client may keep a region: after its operation's outcome, and from its admission to that.
  struct Holds {
    absl::Duration decided;
    absl::Duration undecided = absl::InfiniteDuration();
  };
  OperationPhases(const Holds& limits, const Parts& parts) : limits_(limits), parts_(parts) {}

  // One that gathers.
  Operation& Open(Tenant& tenant, const OperationKey& key, std::string name);
  // It waits for staging.
  void Queue(Operation& operation, uint64_t bytes, const Ticket& ticket);
  // It has its region on every node: ranks may copy.
  void Admit(Operation& operation);
  // The worker moves its rows.
  void StartMove(Operation& operation);
  // This worker's part of the rows is done; other workers' may not be.
  void ReportPublished(Operation& operation);
  void DecideGood(Operation& operation);
  // Nothing, if it has an outcome.
  void Fail(Operation& operation, const absl::Status& cause);
  // Once it has an outcome and nobody touches its region: answers who has pulled, gives everything back and
  // destroys it.
  void CloseIfOver(Operation& operation);
  // No rows of other nodes may come or go.
  void CloseWire(Operation& operation);

  // Every rank has published it: answers those that wait, and destroys it. Its figures come with the ranks' records.
  void CloseMet(Operation& operation);

  // The parts of a dead session's ranks are over: nobody is left to answer. `places`: which ranks these are.
  void EndPartsOf(const std::vector<TenantTable::Place>& places);
  // The sessions that copy or read end: they have held the region of an operation that is over for too long.
  void EvictHolders(Operation& operation);

  void Answer(const Operation& operation, uint32_t rank, shm::Step step,
              const absl::Status& status);
  // Answers a submission that belongs to no operation.
  void Refuse(const Submission& submission, const absl::Status& status);
  // What traces keep of it from its announce on.
  OperationTraces::Place BeginTrace(const Operation& operation, uint32_t rank,
                                    const Announcement& said) {
    return parts_.traces.Begin(operation, rank, said, parts_.event.now);
  }
  // Its step, as traces show it, now.
  void Reach(const Part& part, TracePoint point) {
    parts_.traces.Reach(part.trace, point, parts_.event.now);
  }
  // The rank's part is over: it was told the end.
  void FinishPart(Operation& operation, uint32_t rank);

 private:
  void EnterPhase(Operation& operation, Phase phase);
  void EndTrace(Part& part, absl::StatusCode code);
  void NameBuffers(const Operation& operation);
  RegionView MakeView(const Operation& operation, uint32_t rank) const;
  void CountRoutesOf(const Operation& operation);
  std::vector<uint64_t> StageOffsets(const Operation& operation) const;

  const Holds limits_;
  const Parts parts_;
};

}  // namespace epd
