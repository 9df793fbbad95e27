#include "daemon/worker/engine/admission_queue.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace epd {
namespace {

absl::Status CheckStreamRegion(const Operation& operation, size_t num_from_stream, uint64_t bytes) {
  const uint64_t stream_region_bytes = operation.tenant->stream_region_bytes;
  if (num_from_stream < operation.parts.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        num_from_stream, " of ", operation.parts.size(),
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

}  // namespace

absl::Status AdmissionQueue::CheckFits(Operation& operation, uint64_t bytes,
                                       absl::string_view pool) const {
  const auto num_from_stream =
      static_cast<size_t>(std::count_if(operation.parts.begin(), operation.parts.end(),
                                        [](const Part& part) { return part.said.from_stream; }));
  operation.in_stream_region = num_from_stream > 0;
  if (num_from_stream > 0) return CheckStreamRegion(operation, num_from_stream, bytes);
  const ArenaSetId set = operation.tenant->set;
  if (staging_.EverFits(set, bytes)) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the operation needs ", bytes, " bytes of staging on each of ",
                   operation.parts.size(), " ranks, ", pool, " has ", staging_.room_bytes(set),
                   "; start epd with a larger staging pool, or send fewer tokens per call"));
}

void AdmissionQueue::Add(Operation& operation, uint64_t bytes, const Ticket& ticket) {
  operation.staging_bytes = bytes;
  operation.ticket = ticket;
  const auto after = std::find_if(queue_.begin(), queue_.end(),
                                  [&](const Operation* other) { return other->ticket > ticket; });
  queue_.insert(after, &operation);
  changed_ = true;
}

void AdmissionQueue::Remove(Operation& operation) {
  if (std::erase(queue_, &operation) > 0) changed_ = true;
}

void AdmissionQueue::FreeRegion(Operation& operation) {
  if (!operation.region.has_value()) return;
  if (operation.in_stream_region) {
    used_stream_regions_.erase(operation.tenant);
  } else {
    staging_.Free(*operation.region);
  }
  operation.region.reset();
  changed_ = true;
}

// Who waits for a stream region waits for no pages, and no one else for it. On several nodes that is the same
// operation on each: its leader asks all of them in one order.
bool AdmissionQueue::GrantStreamRegion(Operation& operation) {
  const Tenant* tenant = operation.tenant;
  if (!operation.in_stream_region || !used_stream_regions_.insert(tenant).second) return false;
  operation.region = Region{.set = tenant->set, .offset = 0, .bytes = tenant->stream_region_bytes};
  return true;
}

std::optional<AdmissionQueue::Grant> AdmissionQueue::Next() {
  for (auto it = queue_.begin(); it != queue_.end(); ++it) {
    Operation* operation = *it;
    if (!GrantStreamRegion(*operation)) continue;
    queue_.erase(it);
    return Grant{.operation = operation, .commit = {}, .trims = {}};
  }
  const auto first = std::find_if(queue_.begin(), queue_.end(), [](const Operation* operation) {
    return !operation->in_stream_region;
  });
  if (first == queue_.end()) return std::nullopt;
  Operation* operation = *first;
  const Tenant& tenant = *operation->tenant;
  if (tenant.may_send_eagerly() &&
      operation->staging_bytes <= staging_.eager_options().buffer_bytes) {
    staging_.WantEagerBuffers(tenant.set);
  }
  absl::StatusOr<StagingGrant> grant = staging_.Allocate(tenant.set, operation->staging_bytes);
  if (!grant.ok()) return Grant{.operation = operation, .blocked = true, .commit = {}, .trims = {}};
  queue_.erase(first);
  operation->region = grant->region;
  return Grant{.operation = operation, .commit = grant->commit, .trims = std::move(grant->trims)};
}

void AdmissionQueue::PagesCommitted(const Operation& operation) {
  staging_.Committed(operation.region->set, operation.region->offset + operation.region->bytes);
}

}  // namespace epd
