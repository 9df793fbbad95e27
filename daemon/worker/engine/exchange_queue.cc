// Staging for operations that every rank has announced, in the order of their tickets.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/worker/engine/exchange.h"
#include "daemon/worker/engine/leader_protocol.h"

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

// Whether the operation is called from streams, and then whether its tenant's stream region holds it.
absl::Status Exchange::CheckStreamRegion(Operation& operation, uint64_t bytes) const {
  const auto num_sites =
      static_cast<size_t>(std::count_if(operation.parts.begin(), operation.parts.end(),
                                        [](const Part& part) { return part.said.from_stream; }));
  if (num_sites == 0) return absl::OkStatus();
  operation.in_stream_region = true;
  const uint64_t stream_region_bytes = operation.tenant->stream_region_bytes;
  if (num_sites < operation.parts.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        num_sites, " of ", operation.parts.size(),
        " ranks call from a device's stream and the others do not; call on one platform"));
  }
  if (stream_region_bytes == 0) {
    return absl::FailedPreconditionError(
        "the group's staging is not on a device; form it with backend=cuda");
  }
  if (bytes > stream_region_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the operation needs ", bytes,
        " bytes of staging on each device, the group's stream region has ", stream_region_bytes,
        "; form the group for wider rows, more tokens or more slots"));
  }
  return absl::OkStatus();
}

// The stream regions of tenants, each to the first that waits for it; who has one waits for no pages, and no
// one else for it. On several nodes that is the same operation on each: its leader asks all of them in one
// order. False: nothing changed.
bool Exchange::GrantStreamRegions(absl::Time now) {
  for (auto it = queue_.begin(); it != queue_.end(); ++it) {
    Operation& operation = *operations_.at(*it);
    Tenant& tenant = *operation.tenant;
    if (!operation.in_stream_region || tenant.stream_region_user) continue;
    queue_.erase(it);
    tenant.stream_region_user = operation.id;
    operation.region = Region{.set = tenant.set, .offset = 0, .bytes = tenant.stream_region_bytes};
    Granted(operation, now);
    return true;
  }
  return false;
}

void Exchange::FreeRegion(Operation& operation) {
  if (!operation.region.has_value()) return;
  if (operation.in_stream_region) {
    operation.tenant->stream_region_user = OperationId();
  } else {
    staging_.Free(*operation.region);
  }
  operation.region.reset();
  pump_ = true;
}

// By ticket: whoever is first waits for regions that come back by themselves, or that it has taken
// back from those behind it, and nobody overtakes it, so it is not starved.
void Exchange::PumpQueue(absl::Time now) {
  while (GrantStreamRegions(now)) {
  }
  const auto pooled = [this] {
    return std::find_if(queue_.begin(), queue_.end(),
                        [this](OperationId id) { return !operations_.at(id)->in_stream_region; });
  };
  for (auto first = pooled(); first != queue_.end(); first = pooled()) {
    Operation& operation = *operations_.at(*first);
    if (operation.tenant->may_send_eagerly() &&
        operation.staging_bytes <= staging_.eager_options().buffer_bytes) {
      staging_.WantEagerBuffers(operation.tenant->set);
    }
    absl::StatusOr<StagingGrant> grant = staging_.Allocate(
        operation.tenant->set, operation.staging_bytes, RegionOwner(operation.id.value));
    if (!grant.ok()) return AskRevokes(operation.ticket, now);
    queue_.erase(first);
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
  if (operation.tenant->peers.has_value()) {
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
