// Staging for operations that every rank has announced, in the order of their tickets.
#include <algorithm>

#include "daemon/worker/exchange.h"
#include "daemon/worker/span.h"

namespace epd {

void Exchange::Enqueue(Operation& operation, uint64_t bytes, const Ticket& ticket, absl::Time now) {
  operation.phase = Phase::kQueued;
  operation.phase_since = now;
  operation.staging_bytes = bytes;
  operation.ticket = ticket;
  SetDeadline(operation, now + operation.tenant->start.spec.deadlines.undecided);
  const auto after = std::find_if(queue_.begin(), queue_.end(), [&](OperationId other) {
    return operations_.at(other)->ticket > ticket;
  });
  queue_.insert(after, operation.id);
  pump_ = true;
}

// By ticket: whoever is first waits for regions that come back by themselves, or that it has taken
// back from those behind it, and nobody overtakes it, so it is not starved.
void Exchange::PumpQueue(absl::Time now) {
  while (!queue_.empty()) {
    Operation& operation = *operations_.at(queue_.front());
    if (operation.tenant->may_use_lanes() &&
        operation.staging_bytes <= staging_.lane_options().lane_bytes) {
      staging_.WantLanes(operation.tenant->set);
    }
    absl::StatusOr<StagingGrant> grant = staging_.Allocate(
        operation.tenant->set, operation.staging_bytes, RegionOwner(operation.id.value));
    if (!grant.ok()) return AskRevokes(operation.ticket, now);
    queue_.pop_front();
    operation.region = grant->region;
    if (grant->commit.bytes == 0) {
      Granted(operation, now);
      continue;
    }
    effects_.push_back(CommitPages{
        .operation = operation.id, .range = grant->commit, .trims = std::move(grant->trims)});
  }
}

void Exchange::PagesCommitted(OperationId id, const absl::Status& status, absl::Time now) {
  now_ = now;
  const auto found = operations_.find(id);
  if (found == operations_.end() || found->second->phase != Phase::kQueued) return;
  Operation& operation = *found->second;
  if (status.ok()) {
    staging_.Committed(operation.region->set, operation.region->offset + operation.region->bytes);
    Granted(operation, now);
  } else {
    FailWithExecution(operation, status);
  }
  FinishEvent(now);
}

void Exchange::Granted(Operation& operation, absl::Time now) {
  if (operation.tenant->span.has_value()) {
    TellGranted(operation, now);
  } else {
    Admit(operation, now);
  }
}

void Exchange::Admit(Operation& operation, absl::Time now) {
  operation.phase = Phase::kAdmitted;
  operation.phase_since = now;
  const Tenant& tenant = *operation.tenant;
  SetDeadline(operation, now + tenant.start.spec.deadlines.undecided +
                             (tenant.leads() ? absl::ZeroDuration() : kLeaderFirst));
  for (uint32_t r = 0; r < operation.parts.size(); ++r) {
    if (operation.parts[r].state != PartState::kAnnounced) continue;
    operation.parts[r].state = PartState::kCopying;
    if (!tenant.local(r)) continue;
    Answer(operation, r, shm::Step::kAnnounce, absl::OkStatus());
  }
}

}  // namespace epd
