#include "daemon/worker/staging/staging_pool.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace epd {
namespace {

absl::Status NoSuchSet(ArenaSetId set) {
  return absl::NotFoundError(absl::StrCat("staging pool has no arena set ", set.value));
}

}  // namespace

StagingPool::StagingPool(uint64_t budget_bytes, uint64_t page_bytes)
    : budget_bytes_(budget_bytes), page_bytes_(page_bytes) {}

uint64_t StagingPool::RoundUp(uint64_t bytes) const {
  return std::max(page_bytes_, (bytes + page_bytes_ - 1) & ~(page_bytes_ - 1));
}

uint64_t StagingPool::EndOfLast(const ArenaSet& set) {
  if (set.regions.empty()) return 0;
  const auto& last = *set.regions.rbegin();
  return last.first + last.second.bytes;
}

std::optional<uint64_t> StagingPool::FirstFit(const ArenaSet& set, uint64_t bytes) {
  uint64_t offset = 0;
  for (const auto& [start, held] : set.regions) {
    if (start - offset >= bytes) return offset;
    offset = start + held.bytes;
  }
  if (offset > set.arena_bytes || set.arena_bytes - offset < bytes) return std::nullopt;
  return offset;
}

absl::Status StagingPool::AddSet(ArenaSetId set, int num_arenas, uint64_t arena_bytes,
                                 uint32_t uid) {
  if (num_arenas <= 0 || arena_bytes < page_bytes_) {
    return absl::InvalidArgumentError(
        absl::StrCat("arena set ", set.value, " has ", num_arenas, " arenas of ", arena_bytes,
                     " bytes, expected at least one of a page (", page_bytes_, " bytes)"));
  }
  ArenaSet fresh;
  fresh.num_arenas = num_arenas;
  fresh.uid = uid;
  fresh.arena_bytes = arena_bytes & ~(page_bytes_ - 1);
  if (!sets_.emplace(set, std::move(fresh)).second) {
    return absl::AlreadyExistsError(absl::StrCat("arena set ", set.value, " exists already"));
  }
  return absl::OkStatus();
}

absl::Status StagingPool::RemoveSet(ArenaSetId set) {
  const auto it = sets_.find(set);
  if (it == sets_.end()) return NoSuchSet(set);
  if (!it->second.regions.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("arena set ", set.value, " still has ", it->second.regions.size(),
                     " regions in use or quarantined; free them first"));
  }
  committed_bytes_ -= it->second.high_water * it->second.num_arenas;
  sets_.erase(it);
  return absl::OkStatus();
}

bool StagingPool::EverFits(ArenaSetId set, uint64_t bytes) const {
  const auto it = sets_.find(set);
  if (it == sets_.end() || bytes > it->second.arena_bytes) return false;  // Or rounding overflows.
  const uint64_t rounded = RoundUp(bytes);
  return rounded <= it->second.arena_bytes && rounded <= budget_bytes_ / it->second.num_arenas;
}

bool StagingPool::FitsInMemory(ArenaSetId set, uint64_t bytes) const {
  if (!EverFits(set, bytes)) return false;
  const uint64_t there = budget_bytes_ - std::min(short_bytes_, budget_bytes_);
  return RoundUp(bytes) <= there / sets_.at(set).num_arenas;
}

uint64_t StagingPool::committed_bytes_of(uint32_t uid) const {
  uint64_t bytes = 0;
  for (const auto& [unused, set] : sets_) {
    if (set.uid == uid) bytes += set.high_water * set.num_arenas;
  }
  return bytes;
}

uint64_t StagingPool::BytesOf(const std::vector<Trim>& trims) const {
  uint64_t bytes = 0;
  for (const Trim& trim : trims) bytes += trim.bytes * sets_.at(trim.set).num_arenas;
  return bytes;
}

uint64_t StagingPool::Growth(const ArenaSet& set, uint64_t offset, uint64_t bytes) {
  const uint64_t end = offset + bytes;
  return end > set.high_water ? (end - set.high_water) * set.num_arenas : 0;
}

bool StagingPool::PlanTrims(ArenaSetId keep, const uint32_t* uid, uint64_t needed_bytes,
                            std::vector<Trim>& planned) const {
  struct Tail {
    uint64_t total;
    Trim trim;
    int num_arenas;
  };
  std::map<ArenaSetId, uint64_t> high_waters;  // With what is planned.
  for (const Trim& trim : planned) high_waters[trim.set] = trim.offset;
  std::vector<Tail> tails;
  for (const auto& [id, set] : sets_) {
    const uint64_t end = EndOfLast(set);
    const auto lower = high_waters.find(id);
    const uint64_t high_water = lower == high_waters.end() ? set.high_water : lower->second;
    if (id == keep || (uid != nullptr && set.uid != *uid) || end >= high_water) continue;
    const Trim trim = {id, end, high_water - end};
    tails.push_back({trim.bytes * set.num_arenas, trim, set.num_arenas});
  }
  std::stable_sort(tails.begin(), tails.end(),
                   [](const Tail& a, const Tail& b) { return a.total > b.total; });
  uint64_t won = 0;
  for (const Tail& tail : tails) {
    if (won >= needed_bytes) break;
    // Only as many pages as are needed: warm pages are worth keeping.
    const uint64_t per_arena = (needed_bytes - won + tail.num_arenas - 1) / tail.num_arenas;
    const uint64_t take = std::min(tail.trim.bytes, RoundUp(per_arena));
    planned.push_back({tail.trim.set, tail.trim.offset + tail.trim.bytes - take, take});
    won += take * tail.num_arenas;
  }
  return won >= needed_bytes;
}

bool StagingPool::PlanOwnTrims(ArenaSetId set, uint64_t growth, uint64_t max_of_uid,
                               std::vector<Trim>& planned) const {
  if (max_of_uid == UINT64_MAX) return true;
  const uint32_t uid = sets_.at(set).uid;
  const uint64_t wanted = committed_bytes_of(uid) + growth;
  return wanted <= max_of_uid || PlanTrims(set, &uid, wanted - max_of_uid, planned);
}

bool StagingPool::FitsUid(ArenaSetId set, uint64_t bytes, uint64_t max_of_uid) const {
  const auto found = sets_.find(set);
  if (found == sets_.end() || bytes > found->second.arena_bytes) return false;
  const std::optional<uint64_t> offset = FirstFit(found->second, RoundUp(bytes));
  std::vector<Trim> planned;
  return !offset.has_value() ||
         PlanOwnTrims(set, Growth(found->second, *offset, RoundUp(bytes)), max_of_uid, planned);
}

void StagingPool::Carry(const Trim& trim) {
  ArenaSet& set = sets_.at(trim.set);
  set.high_water = trim.offset;
  committed_bytes_ -= trim.bytes * set.num_arenas;
}

absl::StatusOr<Allotment> StagingPool::Allocate(ArenaSetId set_id, uint64_t bytes,
                                                uint64_t max_of_uid) {
  const auto it = sets_.find(set_id);
  if (it == sets_.end()) return NoSuchSet(set_id);
  ArenaSet& set = it->second;
  const auto exhausted = [&](std::string_view why) {
    return absl::ResourceExhaustedError(
        absl::StrCat("staging: ", bytes, " bytes in each of ", set.num_arenas, " arenas of set ",
                     set_id.value, " do not fit: ", std::string(why), "; arena ", set.arena_bytes,
                     ", pool budget ", budget_bytes_, ", withheld ", withheld_bytes_, ", short ",
                     short_bytes_, ", in use ", in_use_bytes_, ", committed ", committed_bytes_,
                     " bytes; free regions or raise the staging budget"));
  };
  if (bytes > set.arena_bytes) return exhausted("more than the arena");
  const uint64_t rounded = RoundUp(bytes);
  const std::optional<uint64_t> offset = FirstFit(set, rounded);
  if (!offset.has_value()) return exhausted("no free range is large enough");
  const uint64_t grow = Growth(set, *offset, rounded);
  Allotment out;
  if (!PlanOwnTrims(set_id, grow, max_of_uid, out.trims))
    return exhausted("its user has as much as he may, and nothing of that is idle");
  const uint64_t wanted = committed_bytes_ + grow - BytesOf(out.trims);
  const uint64_t budget = budget_bytes_ - std::min(withheld_bytes_ + short_bytes_, budget_bytes_);
  if (grow > 0 && wanted > budget && !PlanTrims(set_id, nullptr, wanted - budget, out.trims))
    return exhausted("the budget is used up and no idle pages can be taken");
  for (const Trim& trim : out.trims) Carry(trim);
  set.high_water = std::max(set.high_water, *offset + rounded);
  set.regions[*offset] = {.bytes = rounded};
  committed_bytes_ += grow;
  peak_committed_bytes_ = std::max(peak_committed_bytes_, committed_bytes_);
  in_use_bytes_ += rounded * set.num_arenas;
  peak_in_use_bytes_ = std::max(peak_in_use_bytes_, in_use_bytes_);
  uint64_t set_in_use = 0;
  for (const auto& [start, held] : set.regions) set_in_use += held.bytes * set.num_arenas;
  set.peak_in_use_bytes = std::max(set.peak_in_use_bytes, set_in_use);
  out.region = {set_id, *offset, rounded};
  return out;
}

absl::StatusOr<StagingPool::Held*> StagingPool::Find(ArenaSetId set, uint64_t offset) {
  const auto it = sets_.find(set);
  if (it == sets_.end()) return NoSuchSet(set);
  const auto region = it->second.regions.find(offset);
  if (region != it->second.regions.end()) return &region->second;
  return absl::NotFoundError(
      absl::StrCat("no region starts at offset ", offset, " of arena set ", set.value));
}

absl::Status StagingPool::Free(ArenaSetId set, uint64_t offset) {
  const absl::StatusOr<Held*> held = Find(set, offset);
  if (!held.ok()) return held.status();
  if ((*held)->quarantined) {
    return absl::FailedPreconditionError(
        absl::StrCat("region at offset ", offset, " of arena set ", set.value,
                     " is quarantined; it is free once its process is gone"));
  }
  ArenaSet& in = sets_.at(set);
  in_use_bytes_ -= (*held)->bytes * in.num_arenas;
  in.regions.erase(offset);
  return absl::OkStatus();
}

absl::Status StagingPool::Quarantine(ArenaSetId set, uint64_t offset) {
  const absl::StatusOr<Held*> held = Find(set, offset);
  if (held.ok()) (*held)->quarantined = true;
  return held.status();
}

absl::Status StagingPool::Release(ArenaSetId set, uint64_t offset) {
  const absl::StatusOr<Held*> held = Find(set, offset);
  if (!held.ok()) return held.status();
  if (!(*held)->quarantined) {
    return absl::FailedPreconditionError(absl::StrCat("region at offset ", offset, " of arena set ",
                                                      set.value, " is in use, not quarantined"));
  }
  (*held)->quarantined = false;
  return Free(set, offset);
}

std::vector<Region> StagingPool::Regions() const {
  std::vector<Region> out;
  for (const auto& [id, set] : sets_) {
    for (const auto& [offset, held] : set.regions) out.push_back({id, offset, held.bytes});
  }
  return out;
}

std::vector<StagingPool::SetStatus> StagingPool::Sets() const {
  std::vector<SetStatus> out;
  for (const auto& [id, set] : sets_) {
    SetStatus status;
    status.id = id;
    status.num_arenas = set.num_arenas;
    status.arena_bytes = set.arena_bytes;
    status.committed_bytes = set.high_water * set.num_arenas;
    status.peak_in_use_bytes = set.peak_in_use_bytes;
    for (const auto& [offset, held] : set.regions) {
      status.in_use_bytes += held.bytes * set.num_arenas;
      if (held.quarantined) status.quarantined_bytes += held.bytes * set.num_arenas;
    }
    out.push_back(status);
  }
  return out;
}

absl::Status StagingPool::CheckConsistent() const {
  uint64_t in_use = 0;
  uint64_t committed = 0;
  for (const auto& [id, set] : sets_) {
    uint64_t end = 0;
    for (const auto& [offset, held] : set.regions) {
      if (offset < end)
        return absl::InternalError(absl::StrCat("regions overlap in arena set ", id.value));
      if (offset % page_bytes_ != 0 || held.bytes % page_bytes_ != 0 || held.bytes == 0) {
        return absl::InternalError(
            absl::StrCat("a region of arena set ", id.value, " is not whole pages"));
      }
      end = offset + held.bytes;
      in_use += held.bytes * set.num_arenas;
    }
    if (end > set.high_water || set.high_water > set.arena_bytes) {
      return absl::InternalError(absl::StrCat("high water of arena set ", id.value, " is wrong"));
    }
    committed += set.high_water * set.num_arenas;
  }
  if (in_use != in_use_bytes_ || committed != committed_bytes_) {
    return absl::InternalError("sums of the staging pool do not agree with its regions");
  }
  if (committed_bytes_ > budget_bytes_)
    return absl::InternalError("more is committed than the budget");
  return absl::OkStatus();
}

}  // namespace epd
