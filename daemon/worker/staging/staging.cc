#include "daemon/worker/staging/staging.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace epd {

absl::StatusOr<Staging::Lease> Staging::Acquire(const ArenaSetKey& key, uint32_t uid) {
  if (const auto found = by_key_.find(key); found != by_key_.end()) {
    ++sets_.at(found->second).num_users;
    return Lease{.set = found->second, .created = false};
  }
  const ArenaSetId id(next_set_++);
  if (absl::Status added = pool_.AddSet(id, static_cast<int>(key.size()), arena_bytes(), uid);
      !added.ok()) {
    return added;
  }
  by_key_[key] = id;
  AddSet(id, key).uid = uid;
  return Lease{.set = id, .created = true};
}

absl::StatusOr<Staging::Lease> Staging::AcquireOnDevice(const ArenaSetKey& key,
                                                        const DeviceArenas& device) {
  uint64_t taken = 0;
  for (const auto& [unused, set] : sets_) taken += set.device_bytes * set.key.size();
  const uint64_t needed = device.arena_bytes * key.size();
  const uint64_t budget = device_pool_.budget_bytes();
  if (needed > budget - taken) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the group needs ", device.arena_bytes, " bytes of device memory on each of ", key.size(),
        " ranks, and ", budget - taken, " of ", budget,
        " bytes of staging are free on the device; start epd with a larger cuda_staging_bytes, or "
        "lower max_tokens_per_rank, recv_capacity_per_rank or hidden"));
  }
  const ArenaSetId id(next_set_++);
  absl::Status added = device_pool_.AddSet(id, static_cast<int>(key.size()), device.arena_bytes);
  if (!added.ok()) return added;
  const absl::StatusOr<Allotment> stream = device_pool_.Allocate(id, device.stream_region_bytes);
  if (!stream.ok()) return stream.status();
  Set& set = AddSet(id, key);
  set.device_bytes = device.arena_bytes;
  set.committed_end = device.arena_bytes;
  set.stream_region = stream->region;
  return Lease{.set = id, .created = true};
}

Staging::Set& Staging::AddSet(ArenaSetId id, const ArenaSetKey& key) {
  Set& set = sets_[id];
  set.key = key;
  set.num_users = 1;
  for (const auto& [session, unused] : key) {
    if (session) by_session_[session].insert(id);
  }
  return set;
}

uint64_t Staging::arena_bytes(ArenaSetId id) const {
  const auto found = sets_.find(id);
  const bool on_device = found != sets_.end() && found->second.device_bytes > 0;
  return on_device ? found->second.device_bytes : arena_bytes();
}

uint64_t Staging::room_bytes(ArenaSetId id) const {
  const Set& set = sets_.at(id);
  if (set.device_bytes == 0) return pool_.budget_bytes() - eager_bytes_;
  return (set.device_bytes - set.stream_region->bytes) * set.key.size();
}

std::vector<ArenaSetId> Staging::Release(ArenaSetId id) {
  Set& set = sets_.at(id);
  if (--set.num_users > 0) return {};
  if (set.device_bytes == 0) by_key_.erase(set.key);
  DropEagerBuffers(set);
  if (!set.lingering.empty()) {
    Quarantine(id, set);
    return {};
  }
  return DropIfIdle(id) ? std::vector<ArenaSetId>{id} : std::vector<ArenaSetId>{};
}

void Staging::Quarantine(ArenaSetId id, Set& set) {
  if (set.quarantined || set.committed_end == 0) return;
  StagingPool& pool = PoolOf(set);
  const absl::StatusOr<Allotment> all = pool.Allocate(id, set.committed_end);
  if (all.ok()) set.quarantined = pool.Quarantine(id, all->region.offset).ok();
}

void Staging::SessionDead(SessionId session, bool process_alive) {
  if (!process_alive) return;
  const auto found = by_session_.find(session);
  if (found == by_session_.end()) return;
  for (const ArenaSetId id : found->second) sets_.at(id).lingering.insert(session);
}

std::vector<ArenaSetId> Staging::ProcessGone(SessionId session) {
  std::vector<ArenaSetId> ids;
  const auto found = by_session_.find(session);
  if (found == by_session_.end()) return ids;
  for (const ArenaSetId id : found->second) {
    Set& set = sets_.at(id);
    if (set.lingering.erase(session) == 0 || !set.lingering.empty() || set.num_users > 0) continue;
    ids.push_back(id);
  }
  std::erase_if(ids, [&](ArenaSetId id) { return !DropIfIdle(id); });
  return ids;
}

bool Staging::DropIfIdle(ArenaSetId id) {
  StagingPool& pool = PoolOf(sets_.at(id));
  if (sets_.at(id).quarantined) pool.Release(id, 0).IgnoreError();
  if (!pool.RemoveSet(id).ok()) return false;
  for (const auto& [session, unused] : sets_.at(id).key) {
    const auto found = by_session_.find(session);
    if (found == by_session_.end()) continue;
    found->second.erase(id);
    if (found->second.empty()) by_session_.erase(found);
  }
  sets_.erase(id);
  return true;
}

uint64_t Staging::EagerBytesOf(uint32_t uid) const {
  uint64_t bytes = 0;
  for (const auto& [unused, set] : sets_) {
    if (set.uid == uid && set.eager.has_value()) bytes += set.eager->bytes * set.key.size();
  }
  return bytes;
}

uint64_t Staging::MaxWithEager(const Set& set, uint64_t max_of_uid) const {
  if (max_of_uid == UINT64_MAX || set.device_bytes > 0) return UINT64_MAX;
  const uint64_t eager = EagerBytesOf(set.uid);
  return max_of_uid > UINT64_MAX - eager ? UINT64_MAX : max_of_uid + eager;
}

bool Staging::FitsUid(ArenaSetId id, uint64_t bytes, uint64_t max_of_uid) const {
  const uint64_t max = MaxWithEager(sets_.at(id), max_of_uid);
  return max == UINT64_MAX || pool_.FitsUid(id, bytes, max);
}

uint64_t Staging::CommittedBytes(uint32_t uid) const {
  return pool_.committed_bytes_of(uid) - EagerBytesOf(uid);
}

absl::StatusOr<StagingGrant> Staging::Allocate(ArenaSetId id, uint64_t bytes, uint64_t max_of_uid) {
  const Set& of = sets_.at(id);
  absl::StatusOr<Allotment> allotment =
      PoolOf(of).Allocate(id, bytes, MaxWithEager(of, max_of_uid));
  if (!allotment.ok()) return allotment.status();
  StagingGrant grant{
      .region = allotment->region, .trims = std::move(allotment->trims), .commit = {}};
  for (const Trim& trim : grant.trims) {
    uint64_t& committed = sets_.at(trim.set).committed_end;
    committed = std::min(committed, trim.offset);
  }
  ++sets_.at(id).num_regions;
  const uint64_t begin = sets_.at(id).committed_end;
  const uint64_t end = grant.region.offset + grant.region.bytes;
  if (end > begin) grant.commit = Region{.set = id, .offset = begin, .bytes = end - begin};
  return grant;
}

// At offset 0 and nowhere else: a region that stays must not keep a long tail from being trimmed.
void Staging::WantEagerBuffers(ArenaSetId id, uint64_t stage_bytes, bool several) {
  Set& set = sets_.at(id);
  if (set.num_regions > 0 || set.device_bytes > 0) return;
  const uint64_t has = set.eager.has_value() ? set.eager->bytes * set.key.size() : 0;
  const uint64_t share = pool_.budget_bytes() / eager_options_.pool_share;
  const uint64_t uncommitted = pool_.budget_bytes() - pool_.committed_bytes();
  const uint64_t num_eager_buffers = shm::NumEagerBuffers(
      eager_options_,
      {.num_arenas = set.key.size(), .stage_bytes = stage_bytes, .several = several},
      std::min(share - (eager_bytes_ - has), uncommitted + has));
  const uint64_t bytes = num_eager_buffers * eager_options_.buffer_bytes;
  if (bytes * set.key.size() <= has || bytes > arena_bytes()) return;
  // Nothing stands behind them, so more of them begin where these do.
  if (has > 0) pool_.Free(id, set.eager->offset).IgnoreError();
  absl::StatusOr<Allotment> area = pool_.Allocate(id, bytes);
  if (!area.ok() && has > 0) area = pool_.Allocate(id, set.eager->bytes);  // Which it just had.
  if (!area.ok()) return;
  eager_bytes_ += area->region.bytes * set.key.size() - has;
  set.eager = area->region;
}

void Staging::DropEagerBuffers(Set& set) {
  if (set.stream_region.has_value()) {
    device_pool_.Free(set.stream_region->set, set.stream_region->offset).IgnoreError();
    set.stream_region.reset();
  }
  if (!set.eager.has_value()) return;
  pool_.Free(set.eager->set, set.eager->offset).IgnoreError();
  eager_bytes_ -= set.eager->bytes * set.key.size();
  set.eager.reset();
}

EagerArea Staging::FindEagerArea(ArenaSetId id) const {
  const auto found = sets_.find(id);
  if (found == sets_.end() || !found->second.eager.has_value()) return {};
  const Region& eager = *found->second.eager;
  const uint64_t committed = std::min(found->second.committed_end, eager.bytes);
  return {.offset = eager.offset,
          .num_eager_buffers = static_cast<uint32_t>(committed / eager_options_.buffer_bytes)};
}

std::optional<uint8_t> Staging::TakeLanding(ArenaSetId id) {
  std::set<uint8_t>& taken = sets_.at(id).landings;
  for (uint8_t buffer = 0; buffer < FindEagerArea(id).num_eager_buffers; ++buffer) {
    if (taken.insert(buffer).second) return buffer;
  }
  return std::nullopt;
}

void Staging::FreeLanding(ArenaSetId id, uint8_t eager_buffer) {
  sets_.at(id).landings.erase(eager_buffer);
}

size_t Staging::num_landings() const {
  size_t taken = 0;
  for (const auto& [unused, set] : sets_) taken += set.landings.size();
  return taken;
}

bool Staging::EverFits(ArenaSetId id, uint64_t bytes) const {
  const uint64_t num_arenas = sets_.at(id).key.size();
  if (sets_.at(id).device_bytes > 0) return bytes <= room_bytes(id) / num_arenas;
  return pool_.EverFits(id, bytes + (eager_bytes_ + num_arenas - 1) / num_arenas);
}

bool Staging::FitsInMemory(ArenaSetId id, uint64_t bytes) const {
  const uint64_t num_arenas = sets_.at(id).key.size();
  if (sets_.at(id).device_bytes > 0) return EverFits(id, bytes);
  return pool_.FitsInMemory(id, bytes + (eager_bytes_ + num_arenas - 1) / num_arenas);
}

void Staging::Free(const Region& region) {
  Set& set = sets_.at(region.set);
  if (PoolOf(set).Free(region.set, region.offset).ok()) --set.num_regions;
}

void Staging::Committed(ArenaSetId id, uint64_t end) {
  uint64_t& committed = sets_.at(id).committed_end;
  committed = std::max(committed, end);
}

uint64_t Staging::ChargeOf(ArenaSetId id, uint64_t bytes) const {
  const uint64_t page = pool_.page_bytes();
  return (std::max<uint64_t>(bytes, 1) + page - 1) / page * page * sets_.at(id).key.size();
}

std::map<uint32_t, uint64_t> Staging::InUseByUid() const {
  std::map<uint32_t, uint64_t> in_use;
  for (const StagingPool::SetStatus& status : pool_.Sets()) {
    const Set& set = sets_.at(status.id);
    const uint64_t eager = set.eager.has_value() ? set.eager->bytes * set.key.size() : 0;
    in_use[set.uid] += status.in_use_bytes - eager;
  }
  return in_use;
}

std::vector<SessionId> Staging::SessionsOf(ArenaSetId id) const {
  std::vector<SessionId> sessions;
  const auto found = sets_.find(id);
  if (found == sets_.end()) return sessions;
  for (const auto& [session, unused] : found->second.key) {
    if (session) sessions.push_back(session);
  }
  return sessions;
}

}  // namespace epd
