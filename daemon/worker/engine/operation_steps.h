// The steps of an operation as ranks take them: from a claimed submission to the operation that it belongs to.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/worker/engine/admission_queue.h"
#include "daemon/worker/engine/effects.h"
#include "daemon/worker/engine/failures.h"
#include "daemon/worker/engine/leader_protocol.h"
#include "daemon/worker/engine/operation.h"
#include "daemon/worker/engine/operation_phases.h"
#include "daemon/worker/engine/operation_table.h"
#include "daemon/worker/engine/rows_ahead.h"
#include "daemon/worker/engine/stream_sites.h"
#include "daemon/worker/engine/submission.h"
#include "daemon/worker/engine/tenant_table.h"
#include "daemon/worker/staging/staging.h"
#include "proto/epd/v1/segment.h"

namespace epd {

// Checks what a rank says, finds or opens its operation, and does what follows: an answer, a failure, or the next phase
// once all ranks have said it. Every submission is answered exactly once, now or later. Owns nothing. Not thread-safe.
class OperationSteps {
 public:
  struct Parts {
    TenantTable& tenants;
    OperationTable& table;
    StreamSites& sites;
    OperationPhases& phases;
    Failures& failures;
    LeaderProtocol& leader;
    RowsAhead& ahead;
    AdmissionQueue& queue;
    PeerMessenger& messenger;
    const Staging& staging;
    EngineEvent& event;
  };
  explicit OperationSteps(const Parts& parts) : parts_(parts) {}

  // `request` is a private copy of client memory and may hold anything.
  // `met`: it is of a call that every rank has published for itself.
  void Take(const Submission& submission, const shm::SlotRequest& request, bool met);
  // Announces of streams' sites that were held and can begin.
  void TakeHeld();
  // Nothing goes on that the held ones could wait for.
  void RefuseHeld(const absl::Status& cause);
  // One or more ranks have announced the operation: goes on if no other has to.
  void HandleAnnounced(Operation& operation);
  void RowsMoved(Operation& operation, const absl::Status& status);

 private:
  // Of a call whose tenant is not known.
  void RefuseStranger(const Submission& submission, const shm::SlotRequest& request,
                      const absl::Status& cause);
  void Announce(const Submission& submission, const shm::SlotRequest& request, bool met = false);
  void AnnounceInTenant(Tenant& tenant, const Submission& submission,
                        const shm::SlotRequest& request, bool met = false);
  void Meet(Tenant& tenant, const OperationKey& key, const Submission& submission);
  absl::StatusOr<Operation*> FindOrOpen(Tenant& tenant, const OperationKey& key,
                                        const Submission& submission,
                                        const shm::SlotRequest& request);
  void BeginPart(Tenant& tenant, Operation& operation, const Submission& submission,
                 const shm::SlotRequest& request);
  absl::Status TakeAnnouncement(Part& part, const Tenant& tenant,
                                const shm::SlotRequest& request) const;
  void HandleAllAnnounced(Operation& operation);
  Operation* FindForSubmission(const Submission& submission, const shm::SlotRequest& request,
                               OperationId id, PartState expected);
  void Publish(const Submission& submission, const shm::SlotRequest& request, OperationId id);
  void Pulled(const Submission& submission, const shm::SlotRequest& request, OperationId id);

  void StreamAnnounce(const Submission& submission, const shm::SlotRequest& request);
  void StreamPublish(const StreamSiteKey& key, const Submission& submission,
                     const shm::SlotRequest& request);
  void StreamPulled(const StreamSiteKey& key, const Submission& submission,
                    const shm::SlotRequest& request);

  const Parts parts_;
};

}  // namespace epd
