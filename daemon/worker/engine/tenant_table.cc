#include "daemon/worker/engine/tenant_table.h"

#include <algorithm>
#include <map>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "daemon/worker/staging/device_arenas.h"

namespace epd {
namespace {

// Ended formations that are remembered only to say why; the oldest is forgotten first.
constexpr size_t kMaxEndedTenants = 4096;
// Of their executions and past operations, of all together.
constexpr size_t kMaxEndedBytes = size_t{32} << 20;
// What calls that ranks made for themselves come to is counted after the end, too, with who made them.
constexpr size_t kEndedWithMembers = 64;

}  // namespace

uint32_t TenantTable::NumSlots(SessionId session) const {
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? 0 : found->second.num_slots;
}

void TenantTable::EndSession(SessionId session, bool process_alive) {
  if (sessions_.erase(session) > 0) {
    staging_.SessionDead(session, process_alive);
  } else if (!process_alive) {
    const std::vector<ArenaSetId> dropped = staging_.ProcessGone(session);
    if (!dropped.empty()) DropArenaSets(dropped);
  }
}

std::vector<TenantTable::Place> TenantTable::PlacesOf(SessionId session) const {
  std::vector<Place> places;
  const auto found = places_.find(session);
  if (found == places_.end()) return places;
  for (const auto& [unused, place] : found->second) places.push_back(place);
  return places;
}

void TenantTable::AddPlaces(Tenant& tenant) {
  const ByFormation::key_type key{tenant.start.group, tenant.start.formation};
  for (const RankHolder& member : tenant.start.members) {
    if (!member.session) continue;
    Place& place = places_[member.session][key];
    place.tenant = &tenant;
    place.ranks.push_back(member.rank);
  }
}

void TenantTable::RemovePlaces(const Tenant& tenant) {
  const ByFormation::key_type key{tenant.start.group, tenant.start.formation};
  for (const SessionId session : tenant.sessions) {
    const auto found = places_.find(session);
    if (found == places_.end()) continue;
    found->second.erase(key);
    if (found->second.empty()) places_.erase(found);
  }
}

Tenant* TenantTable::Find(GroupId group, Formation formation) const {
  const auto found = tenants_.find({group, formation});
  return found == tenants_.end() ? nullptr : found->second.get();
}

Tenant* TenantTable::FindCurrent(GroupId group) const {
  auto after = tenants_.upper_bound({group, Formation(UINT64_MAX)});
  if (after == tenants_.begin()) return nullptr;
  --after;
  return after->first.first == group ? after->second.get() : nullptr;
}

Tenant* TenantTable::FindFor(const shm::SlotRequest& request) const {
  const GroupId group(request.group_id);
  Tenant* named = Find(group, Formation(request.formation));
  return named != nullptr ? named : FindCurrent(group);
}

absl::Status TenantTable::CheckStart(const TenantStart& start) const {
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
  const Tenant* current = FindCurrent(start.group);
  if (current == nullptr || current->start.formation < start.formation) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(
      "formation ", start.formation.value, " of group ", start.spec.name,
      " is not above formation ", current->start.formation.value, ", which was started"));
}

absl::Status TenantTable::Start(TenantStart start) {
  auto tenant = std::make_unique<Tenant>(std::move(start));
  const GroupId group = tenant->start.group;
  const std::vector<RankHolder>& members = tenant->start.members;
  tenant->stream_region_bytes = stream_region_bytes_;
  const Tenant* before = FindCurrent(group);
  tenant->past =
      before != nullptr ? before->past : std::make_shared<PastOperations>(members.size());
  if (std::any_of(members.begin(), members.end(),
                  [](const RankHolder& member) { return !member.session; })) {
    absl::StatusOr<TenantPeers> peers = MakePeers(tenant->start, self_);
    if (peers.ok()) {
      tenant->peers = *std::move(peers);
    } else {
      tenant->ended = peers.status();
    }
  }
  for (const RankHolder& member : members) {
    if (member.session) tenant->uid = sessions_.at(member.session).uid;
  }
  JoinShare(*tenant);
  std::vector<Rank> ranks;
  for (const RankHolder& member : members) {
    const bool has_arena = member.session || tenant->peers.has_value();
    tenant->arena_of_rank.push_back(has_arena ? static_cast<int>(ranks.size()) : -1);
    if (has_arena) ranks.push_back(member.rank);
  }
  if (absl::Status taken = TakeArenas(*tenant, MakeArenaSetKey(*tenant)); !taken.ok()) return taken;
  event_.Add(ReportTenantReady{.group = group,
                               .formation = tenant->start.formation,
                               .set = tenant->set,
                               .ranks = std::move(ranks),
                               .stream_region_offset = 0,
                               .stream_region_bytes = tenant->stream_region_bytes});
  AddPlaces(*tenant);
  tenants_[{group, tenant->start.formation}] = std::move(tenant);
  return absl::OkStatus();
}

void TenantTable::JoinShare(Tenant& tenant) {
  std::shared_ptr<ProgramMemory>& of_uid = program_memory_[tenant.uid];
  if (of_uid == nullptr) of_uid = std::make_shared<ProgramMemory>(ProgramMemory{.uid = tenant.uid});
  tenant.executions.JoinShare(of_uid);
}

// A rank of another worker has an arena that only this worker writes; those of one worker may lie in one.
ArenaSetKey TenantTable::MakeArenaSetKey(const Tenant& tenant) {
  const bool lands = tenant.start.landing_arenas && !tenant.start.on_device();
  ArenaSetKey key;
  uint32_t num_remote = 0;
  std::map<WorkerId, uint32_t> landing_of;
  for (const RankHolder& member : tenant.start.members) {
    if (member.session) {
      key.emplace_back(member.session, member.arena_index);
    } else if (tenant.peers.has_value() && lands) {
      const auto next = static_cast<uint32_t>(landing_of.size());
      const auto landing = landing_of.try_emplace(member.server(), next).first;
      key.emplace_back(SessionId(), kInLandingArena + landing->second);
    } else if (tenant.peers.has_value()) {
      key.emplace_back(SessionId(), num_remote++);
    }
  }
  return key;
}

absl::Status TenantTable::TakeArenas(Tenant& tenant, const ArenaSetKey& key) {
  if (key.empty()) return absl::OkStatus();
  absl::StatusOr<Staging::Lease> lease = absl::InternalError("");
  if (tenant.start.on_device()) {
    const DeviceArenas device = PlanDeviceArenas(tenant.start.spec);
    lease = staging_.AcquireOnDevice(key, device);
    tenant.stream_region_bytes = device.stream_region_bytes;
  } else {
    lease = staging_.Acquire(key, tenant.uid);
  }
  if (!lease.ok()) return lease.status();
  tenant.set = lease->set;
  if (lease->created) {
    CreateArenas create{.set = lease->set,
                        .uid = tenant.uid,
                        .num_arenas = static_cast<int>(key.size()),
                        .arena_bytes = staging_.arena_bytes(lease->set),
                        .backend = tenant.start.spec.backend};
    for (const auto& [session, index] : key) {
      const bool lands = !session && index >= kInLandingArena;
      create.landing_of_arena.push_back(lands ? static_cast<int>(index - kInLandingArena) : -1);
    }
    event_.Add(std::move(create));
  }
  return absl::OkStatus();
}

void TenantTable::ReleaseIfIdle(Tenant& tenant) {
  if (tenant.num_open > 0 || tenant.awaits_direct) return;
  if (tenant.draining && !tenant.streams_end && !std::exchange(tenant.drain_reported, true)) {
    event_.Add(
        ReportTenantDrained{.group = tenant.start.group, .formation = tenant.start.formation});
  }
  if (tenant.closed) NoteEnded(tenant);
  if (!tenant.closed || !tenant.set) return;
  // Until its leader, another worker, has said why it ended, calls may still come to wait for that.
  if (tenant.leads() || tenant.peers->leader_spoke) RemovePlaces(tenant);
  DropArenaSets(staging_.Release(std::exchange(tenant.set, ArenaSetId())));
}

// Thousands that have ended are remembered.
void TenantTable::NoteEnded(Tenant& tenant) {
  tenant.counters.waited_ns = std::vector<int64_t>();
  tenant.counters.waits = std::vector<WaitCounts>();
  if (std::exchange(tenant.listed, true)) return;
  tenant.executions.JoinShare(ended_programs_);
  ended_.push_back({{tenant.start.group, tenant.start.formation}, tenant.past->bytes()});
  ended_past_bytes_ += ended_.back().past_bytes;
}

void TenantTable::DropArenaSets(const std::vector<ArenaSetId>& sets) {
  for (ArenaSetId set : sets) event_.Add(DropArenas{.set = set});
  queue_.NoteChange();
}

// Each is looked at once for each of these, however many there are.
void TenantTable::ForgetEnded() {
  for (; ended_.size() > num_without_members_ + kEndedWithMembers; ++num_without_members_) {
    Tenant& tenant = *tenants_.at(ended_[num_without_members_].key);
    if (tenant.settled()) tenant.ForgetMembers();
  }
  while (ended_past_bytes_ + ended_programs_->used > kMaxEndedBytes &&
         num_without_past_ < ended_.size()) {
    const Ended& oldest = ended_[num_without_past_++];
    ended_past_bytes_ -= oldest.past_bytes;
    Tenant& tenant = *tenants_.at(oldest.key);
    if (!tenant.gone()) continue;
    tenant.executions.Forget();
    tenant.past = std::make_shared<PastOperations>(tenant.num_ranks());
  }
  while (ended_.size() > kMaxEndedTenants) ForgetOldest();
}

void TenantTable::ForgetOldest() {
  const Ended oldest = ended_.front();
  ended_.pop_front();
  if (num_without_members_ > 0) --num_without_members_;
  if (num_without_past_ > 0) {
    --num_without_past_;
  } else {
    ended_past_bytes_ -= oldest.past_bytes;
  }
  const auto found = tenants_.find(oldest.key);
  if (found->second->gone()) {
    RemovePlaces(*found->second);
    tenants_.erase(found);
  } else {
    found->second->listed = false;  // Late calls wait in it. It ends once more.
  }
}

}  // namespace epd
