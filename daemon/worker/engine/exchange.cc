#include "daemon/worker/engine/exchange.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/worker/engine/cause_text.h"
#include "daemon/worker/engine/leader_protocol.h"
#include "daemon/worker/staging/device_arenas.h"

namespace epd {
namespace {

// Ended formations that are remembered only to say why; the oldest is forgotten first.
constexpr size_t kMaxEndedTenants = 4096;

absl::Status GoneCause(const Tenant& tenant, const std::vector<Rank>& ranks,
                       const absl::Status& cause) {
  return absl::Status(cause.ok() ? absl::StatusCode::kUnavailable : cause.code(),
                      absl::StrCat(NameRanks(tenant, ranks, "gone"), ": ", cause.message(),
                                   "; start the lost process again and join anew"));
}

}  // namespace

Exchange::Exchange(ExchangeOptions options)
    : options_(options),
      staging_(options.staging_bytes, options.page_bytes, options.eager,
               options.device_staging_bytes),
      next_operation_(options.first_operation_id) {}

void Exchange::AddSession(SessionId session) { sessions_.try_emplace(session); }

Tenant* Exchange::FindTenant(GroupId group, Formation formation) {
  const auto found = tenants_.find({group, formation});
  return found == tenants_.end() ? nullptr : found->second.get();
}

Tenant* Exchange::CurrentTenant(GroupId group) const {
  auto after = tenants_.upper_bound({group, Formation(UINT64_MAX)});
  if (after == tenants_.begin()) return nullptr;
  --after;
  return after->first.first == group ? after->second.get() : nullptr;
}

absl::Status Exchange::CheckStart(const TenantStart& start) const {
  if (start.members.size() != start.spec.num_ranks || start.members.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tenant has ", start.members.size(),
                     " members, expected num_ranks=", start.spec.num_ranks));
  }
  for (uint32_t r = 0; r < start.members.size(); ++r) {
    const RankHolder& member = start.members[r];
    if (member.rank.value != r) {
      return absl::InvalidArgumentError(
          absl::StrCat("member ", r, " has rank ", member.rank.value, ", expected rank order"));
    }
    if (member.session && !sessions_.contains(member.session)) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", r, " belongs to session ",
                                                     member.session.value, ", which is unknown"));
    }
  }
  return absl::OkStatus();
}

absl::Status Exchange::StartTenant(TenantStart start, absl::Time now) {
  now_ = now;
  if (absl::Status status = CheckStart(start); !status.ok()) return status;
  const GroupId group = start.group;
  if (Tenant* current = CurrentTenant(group); current != nullptr) {
    if (current->start.formation >= start.formation) {
      return absl::AlreadyExistsError(absl::StrCat(
          "formation ", start.formation.value, " of group ", start.spec.name,
          " is not above formation ", current->start.formation.value, ", which was started"));
    }
    EndTenant(group, current->start.formation, absl::AbortedError("the group was re-formed"), now);
  }
  auto tenant = std::make_unique<Tenant>(std::move(start));
  tenant->stream_region_bytes = options_.stream_region_bytes;
  if (const Tenant* before = CurrentTenant(group); before != nullptr) {
    tenant->past = before->past;
  } else {
    tenant->past = std::make_shared<PastOperations>(tenant->start.members.size());
  }
  ArenaSetKey key;
  std::vector<Rank> ranks;
  uint32_t num_remote = 0;
  if (const auto& m = tenant->start.members;
      std::any_of(m.begin(), m.end(), [](const RankHolder& member) { return !member.session; })) {
    tenant->ended = StartWithPeers(*tenant);
  }
  for (const RankHolder& member : tenant->start.members) {
    const bool has_arena = member.session || tenant->peers.has_value();
    tenant->arena_of_rank.push_back(has_arena ? static_cast<int>(key.size()) : -1);
    if (!has_arena) continue;
    // A rank of another node has an arena that only this worker writes.
    key.emplace_back(member.session, member.session ? member.arena_index : num_remote++);
    ranks.push_back(member.rank);
  }
  if (absl::Status taken = TakeArenas(*tenant, key); !taken.ok()) return taken;
  effects_.push_back(ReportTenantReady{.group = group,
                                       .formation = tenant->start.formation,
                                       .set = tenant->set,
                                       .ranks = std::move(ranks),
                                       .stream_region_offset = 0,
                                       .stream_region_bytes = tenant->stream_region_bytes});
  const TenantKey tenant_key{group, tenant->start.formation};
  tenants_[tenant_key] = std::move(tenant);
  FinishEvent(now);
  return absl::OkStatus();
}

absl::Status Exchange::TakeArenas(Tenant& tenant, const ArenaSetKey& key) {
  if (key.empty()) return absl::OkStatus();
  absl::StatusOr<Staging::Lease> lease = absl::InternalError("");
  if (tenant.start.on_device()) {
    const DeviceArenas device = PlanDeviceArenas(tenant.start.spec);
    lease = staging_.AcquireOnDevice(key, device);
    tenant.stream_region_bytes = device.stream_region_bytes;
  } else {
    lease = staging_.Acquire(key);
  }
  if (!lease.ok()) return lease.status();
  tenant.set = lease->set;
  if (lease->created) {
    effects_.push_back(CreateArenas{.set = lease->set,
                                    .num_arenas = static_cast<int>(key.size()),
                                    .arena_bytes = staging_.arena_bytes(lease->set),
                                    .backend = tenant.start.spec.backend});
  }
  return absl::OkStatus();
}

void Exchange::EndFormation(Tenant& tenant, const absl::Status& cause) {
  if (tenant.peers.has_value()) return EndWithPeers(tenant, cause, false, false);
  if (tenant.ended.ok()) tenant.ended = cause;
  for (Operation* operation : UndecidedOf(tenant)) FailOperation(*operation, tenant.ended);
}

void Exchange::EndTenant(GroupId group, Formation formation, const absl::Status& cause,
                         absl::Time now) {
  now_ = now;
  Tenant* tenant = FindTenant(group, formation);
  if (tenant == nullptr) return;
  EndFormation(*tenant, cause.ok() ? absl::AbortedError("the group has ended") : cause);
  tenant->closed = true;
  ReleaseTenantIfIdle(*tenant);
  ForgetEndedTenants();
  FinishEvent(now);
}

void Exchange::EndEverything(const absl::Status& cause, absl::Time now) {
  now_ = now;
  for (auto& [unused, tenant] : tenants_) {
    if (tenant->peers.has_value()) {
      EndWithPeers(*tenant, cause, true, false);
    } else {
      EndFormation(*tenant, cause);
    }
    tenant->closed = true;
    ReleaseTenantIfIdle(*tenant);
  }
  RefuseHeld(cause);
  FinishEvent(now);
}

void Exchange::DrainTenant(GroupId group, Formation formation, absl::Time now) {
  now_ = now;
  Tenant* tenant = FindTenant(group, formation);
  if (tenant == nullptr) {
    effects_.push_back(ReportTenantDrained{.group = group, .formation = formation});
    return;
  }
  tenant->draining = true;
  ReleaseTenantIfIdle(*tenant);
  FinishEvent(now);
}

void Exchange::ReleaseTenantIfIdle(Tenant& tenant) {
  if (tenant.num_open > 0) return;
  if (tenant.draining && !tenant.drain_reported) {
    tenant.drain_reported = true;
    effects_.push_back(
        ReportTenantDrained{.group = tenant.start.group, .formation = tenant.start.formation});
  }
  if (!tenant.closed || !tenant.set) return;
  for (ArenaSetId set : staging_.Release(tenant.set)) effects_.push_back(DropArenas{.set = set});
  tenant.set = ArenaSetId();
  pump_ = true;
}

void Exchange::SessionDead(SessionId session, const absl::Status& cause, bool process_alive,
                           absl::Time now) {
  now_ = now;
  if (!sessions_.contains(session)) {
    if (!process_alive) {
      for (ArenaSetId set : staging_.ProcessGone(session)) effects_.push_back(DropArenas{set});
      pump_ = true;
    }
    FinishEvent(now);
    return;
  }
  staging_.SessionDead(session, process_alive);
  ForgetSession(session);
  for (auto& [unused, tenant] : tenants_) {
    std::vector<Rank> ranks;
    for (const RankHolder& member : tenant->start.members) {
      if (member.session == session) ranks.push_back(member.rank);
    }
    if (!ranks.empty() && !tenant->closed) EndFormation(*tenant, GoneCause(*tenant, ranks, cause));
  }
  FinishEvent(now);
}

// Nobody is left to answer; what its ranks held is free, unless the arenas stay charged as a whole.
void Exchange::ForgetSession(SessionId session) {
  sessions_.erase(session);
  std::erase_if(sites_, [&](const auto& site) { return site.first.first == session; });
  std::vector<Operation*> touched;
  for (auto& [unused, operation] : operations_) {
    const std::vector<RankHolder>& members = operation->tenant->start.members;
    for (uint32_t r = 0; r < members.size(); ++r) {
      if (members[r].session != session || operation->parts[r].state == PartState::kAbsent)
        continue;
      operation->tenant->past->Ended(*operation, r, absl::StatusCode::kUnavailable, now_);
      operation->parts[r].state = PartState::kDone;
      touched.push_back(operation.get());
    }
  }
  std::sort(touched.begin(), touched.end());
  touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
  for (Operation* operation : touched) CloseIfOver(*operation);
}

void Exchange::FinishEvent(absl::Time now) {
  while (pump_ || !freed_sites_.empty()) {
    if (std::exchange(pump_, false)) PumpQueue(now);
    TakeHeld(now);
  }
}

void Exchange::ForgetEndedTenants() {
  size_t num_gone = 0;
  for (const auto& [unused, tenant] : tenants_) num_gone += tenant->gone();
  for (auto it = tenants_.begin(); num_gone > kMaxEndedTenants && it != tenants_.end();) {
    const bool gone = it->second->gone();
    it = gone ? tenants_.erase(it) : std::next(it);
    num_gone -= gone;
  }
}

}  // namespace epd
