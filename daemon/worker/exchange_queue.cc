// Staging for operations that every rank has announced, in the order of their tickets.
#include <algorithm>

#include "absl/strings/str_cat.h"
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

// Whether the operation is called from streams, and then whether its tenant's lane holds it.
absl::Status Exchange::CheckLaneUse(Operation& operation, uint64_t bytes) const {
  const auto num_sites =
      static_cast<size_t>(std::count_if(operation.parts.begin(), operation.parts.end(),
                                        [](const Part& part) { return part.said.from_stream; }));
  if (num_sites == 0) return absl::OkStatus();
  operation.in_lane = true;
  const uint64_t lane_bytes = operation.tenant->lane_bytes;
  if (num_sites < operation.parts.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        num_sites, " of ", operation.parts.size(),
        " ranks call from a device's stream and the others do not; call on one platform"));
  }
  if (lane_bytes == 0) {
    return absl::FailedPreconditionError(
        "the group's staging is not on a device; form it with backend=cuda");
  }
  if (bytes > lane_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the operation needs ", bytes, " bytes of staging on each device, the group's lane has ",
        lane_bytes, "; form the group for wider rows, more tokens or more slots"));
  }
  return absl::OkStatus();
}

// The lanes of tenants, each to the first that waits for it; who has a lane waits for no pages, and no
// one else for it. On several nodes that is the same operation on each: its leader asks all of them in one
// order. False: nothing changed.
bool Exchange::GrantLanes(absl::Time now) {
  for (auto it = queue_.begin(); it != queue_.end(); ++it) {
    Operation& operation = *operations_.at(*it);
    Tenant& tenant = *operation.tenant;
    if (!operation.in_lane || tenant.lane_user) continue;
    queue_.erase(it);
    tenant.lane_user = operation.id;
    operation.region = Region{.set = tenant.set, .offset = 0, .bytes = tenant.lane_bytes};
    Granted(operation, now);
    return true;
  }
  return false;
}

void Exchange::FreeRegion(Operation& operation) {
  if (!operation.region.has_value()) return;
  if (operation.in_lane) {
    operation.tenant->lane_user = OperationId();
  } else {
    staging_.Free(*operation.region);
  }
  operation.region.reset();
  pump_ = true;
}

// By ticket: whoever is first waits for regions that come back by themselves, or that it has taken
// back from those behind it, and nobody overtakes it, so it is not starved.
void Exchange::PumpQueue(absl::Time now) {
  while (GrantLanes(now)) {
  }
  const auto pooled = [this] {
    return std::find_if(queue_.begin(), queue_.end(),
                        [this](OperationId id) { return !operations_.at(id)->in_lane; });
  };
  for (auto first = pooled(); first != queue_.end(); first = pooled()) {
    Operation& operation = *operations_.at(*first);
    if (operation.tenant->may_use_lanes() &&
        operation.staging_bytes <= staging_.lane_options().lane_bytes) {
      staging_.WantLanes(operation.tenant->set);
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
