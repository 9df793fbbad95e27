#include "daemon/worker/engine/admission_queue.h"

#include <algorithm>

#include "absl/algorithm/container.h"
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

absl::Status CheckOne(uint64_t held, uint64_t more, uint64_t max, const char* setting,
                      const std::string& who) {
  if (held <= max && more <= max - held) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      who, " holds ", held, " bytes of staging on this node and asks for ", more,
      " more; the most is ", max, " (", setting,
      "); run less at the same time, send fewer tokens per call, or have the setting raised"));
}

}  // namespace

absl::Status AdmissionQueue::CheckTenantQuota(const Operation& operation, uint64_t held) const {
  const Tenant& tenant = *operation.tenant;
  return CheckOne(held, staging_.ChargeOf(tenant.set, operation.staging_bytes),
                  limits_.staging_per_tenant, "max_staging_per_tenant",
                  absl::StrCat("group=", Title(tenant.start.spec), " of uid ", tenant.uid));
}

absl::Status AdmissionQueue::CheckUidQuota(const Operation& operation, uint64_t held) const {
  const Tenant& tenant = *operation.tenant;
  return CheckOne(held, staging_.ChargeOf(tenant.set, operation.staging_bytes),
                  limits_.staging_per_uid, "max_staging_per_uid",
                  absl::StrCat("uid ", tenant.uid, " with all its tenants"));
}

// What is free stays in memory, and whoever had it can keep it there: it counts as his.
absl::Status AdmissionQueue::CheckUidMemory(const Operation& operation) const {
  const Tenant& tenant = *operation.tenant;
  const uint64_t max = limits_.staging_per_uid;
  if (staging_.FitsUid(tenant.set, operation.staging_bytes, max)) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "uid ", tenant.uid, " with all its tenants has ", staging_.CommittedBytes(tenant.uid),
      " bytes of staging in memory on this node, in use or beside what is, and asks for ",
      staging_.ChargeOf(tenant.set, operation.staging_bytes), "; the most is ", max,
      " (max_staging_per_uid); run less at the same time, send fewer tokens per call, or have the "
      "setting raised"));
}

absl::Status AdmissionQueue::CheckQuota(const Operation& operation) const {
  absl::Status quota = CheckTenantQuota(operation, StagedBytes(*operation.tenant));
  if (quota.ok()) quota = CheckUidQuota(operation, StagedBytes(operation.tenant->uid));
  if (quota.ok()) quota = CheckUidMemory(operation);
  return quota;
}

// Whose pages are not given back keeps others waiting, too.
absl::Status AdmissionQueue::WhyItWaits(const Operation& operation) const {
  const auto own = page_problems_.find(operation.tenant->uid);
  if (own != page_problems_.end()) return absl::ResourceExhaustedError(own->second);
  if (operation.making_pages)
    return absl::ResourceExhaustedError("its pages are not made yet; look at the node's memory");
  absl::Status quota = CheckQuota(operation);
  if (!quota.ok()) return quota;
  if (!page_problems_.empty()) return absl::ResourceExhaustedError(page_problems_.begin()->second);
  if (!staging_.why_short().empty()) return absl::ResourceExhaustedError(staging_.why_short());
  return absl::ResourceExhaustedError(
      "start epd with a larger staging pool, or run less at the same time");
}

uint64_t AdmissionQueue::StagedBytes(const Tenant& tenant) const {
  const auto staged = staged_.find(&tenant);
  return staged == staged_.end() ? 0 : staged->second;
}

uint64_t AdmissionQueue::StagedBytes(uint32_t uid) const {
  if (limits_.staging_per_uid == UINT64_MAX) return 0;
  return staging_.InUseByUid()[uid];
}

absl::Status AdmissionQueue::CheckFits(Operation& operation, uint64_t bytes,
                                       absl::string_view pool) const {
  const auto num_from_stream =
      static_cast<size_t>(std::count_if(operation.parts.begin(), operation.parts.end(),
                                        [](const Part& part) { return part.said.from_stream; }));
  operation.in_stream_region = num_from_stream > 0;
  if (num_from_stream > 0) return CheckStreamRegion(operation, num_from_stream, bytes);
  const ArenaSetId set = operation.tenant->set;
  operation.staging_bytes = bytes;
  absl::Status quota = CheckTenantQuota(operation, 0);
  if (quota.ok()) quota = CheckUidQuota(operation, 0);
  if (!quota.ok() || staging_.FitsInMemory(set, bytes)) return quota;
  if (staging_.EverFits(set, bytes)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the operation needs ", bytes, " bytes of staging on each of ", operation.parts.size(),
        " ranks, and in ", pool, " ", staging_.why_short(), " [EPD-1105]"));
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "the operation needs ", bytes, " bytes of staging on each of ", operation.parts.size(),
      " ranks, ", pool, " has ", staging_.room_bytes(set),
      "; start epd with a larger staging pool, or send fewer tokens per call [EPD-1102]"));
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
    const auto staged = staged_.find(operation.tenant);
    staged->second -= staging_.ChargeOf(operation.region->set, operation.region->bytes);
    if (staged->second == 0) staged_.erase(staged);
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

// Operations that wait were found to fit beside what eager buffers there were.
void AdmissionQueue::WantEagerBuffers(const Operation& operation) {
  const Tenant& tenant = *operation.tenant;
  if (!tenant.may_send_eagerly() || queue_.size() > 1) return;
  const bool several =
      !tenant.peers.has_value() && absl::c_all_of(operation.parts, [](const Part& part) {
        return part.said.reads_many_eager_buffers;
      });
  uint64_t stage_bytes = 0;
  for (const Part& part : operation.parts) {
    stage_bytes = std::max(stage_bytes, part.said.stage_bytes);
  }
  staging_.WantEagerBuffers(tenant.set, stage_bytes, several);
}

std::optional<AdmissionQueue::Grant> AdmissionQueue::Next() {
  for (auto it = queue_.begin(); it != queue_.end(); ++it) {
    Operation* operation = *it;
    if (!GrantStreamRegion(*operation)) continue;
    queue_.erase(it);
    return Grant{.operation = operation, .commit = {}, .trims = {}};
  }
  std::set<const Tenant*> late_tenants;
  std::set<uint32_t> late_uids;
  Operation* oldest_late = nullptr;
  const auto blocked = [&](Operation* operation) {
    return Grant{.operation = oldest_late != nullptr ? oldest_late : operation,
                 .blocked = true,
                 .commit = {},
                 .trims = {}};
  };
  for (auto it = queue_.begin(); it != queue_.end(); ++it) {
    Operation* operation = *it;
    const Tenant& tenant = *operation->tenant;
    const bool behind_late = late_tenants.contains(&tenant) || late_uids.contains(tenant.uid);
    if (operation->in_stream_region || behind_late) continue;
    const bool uid_is_late = !CheckUidQuota(*operation, StagedBytes(tenant.uid)).ok() ||
                             !CheckUidMemory(*operation).ok();
    if (uid_is_late) late_uids.insert(tenant.uid);
    if (uid_is_late || !CheckTenantQuota(*operation, StagedBytes(tenant)).ok()) {
      late_tenants.insert(&tenant);
      if (oldest_late == nullptr) oldest_late = operation;
      continue;
    }
    WantEagerBuffers(*operation);
    absl::StatusOr<StagingGrant> grant =
        staging_.Allocate(tenant.set, operation->staging_bytes, limits_.staging_per_uid);
    if (!grant.ok()) return blocked(operation);
    queue_.erase(it);
    operation->region = grant->region;
    staged_[&tenant] += staging_.ChargeOf(tenant.set, grant->region.bytes);
    return Grant{.operation = operation, .commit = grant->commit, .trims = std::move(grant->trims)};
  }
  return oldest_late == nullptr ? std::optional<Grant>() : blocked(nullptr);
}

// Whoever is first asks those that have their regions to give them back, and this one has its own from now on.
void AdmissionQueue::PagesCommitted(const Operation& operation) {
  changed_ = true;
  staging_.Committed(operation.region->set, operation.region->offset + operation.region->bytes);
}

}  // namespace epd
