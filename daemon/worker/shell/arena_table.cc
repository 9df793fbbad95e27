#include "daemon/worker/shell/arena_table.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/shared_memory/page_guard.h"

namespace epd {

void ArenaTable::Create(const CreateArenas& effect, Backend& backend) {
  Entry& entry = sets_[effect.set];
  entry.backend = &backend;
  absl::StatusOr<std::unique_ptr<ArenaSet>> set =
      backend.CreateArenas(effect.num_arenas, effect.arena_bytes, effect.landing_of_arena);
  if (!set.ok()) {
    // These two codes say something else of a set.
    const bool other = absl::IsUnavailable(set.status()) || absl::IsNotFound(set.status());
    entry.problem = other ? absl::InternalError(set.status().message()) : set.status();
    return;
  }
  entry.set = *std::move(set);
  page_work_.Add(effect.set, effect.num_arenas);
  if (entry.set->MakeSome()) unmade_.push_back(effect.set);
}

const ArenaTable::Entry* ArenaTable::FindUsed(ArenaSetId set) const {
  const auto found = sets_.find(set);
  return found == sets_.end() || !found->second.in_use ? nullptr : &found->second;
}

absl::Status ArenaTable::Ready(ArenaSetId set) const {
  const Entry* entry = FindUsed(set);
  if (entry == nullptr) return absl::NotFoundError("there are no such arenas");
  return entry->set == nullptr ? entry->problem : entry->set->Ready();
}

ArenaSet* ArenaTable::Find(ArenaSetId set) const {
  const Entry* entry = FindUsed(set);
  return entry == nullptr ? nullptr : entry->set.get();
}

Backend* ArenaTable::FindBackend(ArenaSetId set) const {
  const Entry* entry = FindUsed(set);
  return entry == nullptr || entry->set == nullptr ? nullptr : entry->backend;
}

bool ArenaTable::Commit(const CommitPages& effect) {
  if (Find(effect.range.set) == nullptr) return false;
  page_work_.Commit(effect);
  return true;
}

// A device's memory is back when this returns: the next set's may have to come from it.
void ArenaTable::Drop(ArenaSetId set) {
  const auto found = sets_.find(set);
  if (found == sets_.end()) return;
  std::erase(unmade_, set);
  if (found->second.set == nullptr || IsOnDevice(found->second.backend->name())) {
    sets_.erase(found);
    page_work_.Forget(set);
    return;
  }
  found->second.in_use = false;
  page_work_.Drop(set);
}

std::optional<PageWork::Made> ArenaTable::Work() {
  if (!unmade_.empty() && !sets_.at(unmade_.front()).set->MakeSome()) unmade_.pop_front();
  return WorkOnPages();
}

std::optional<PageWork::Made> ArenaTable::WorkOnPages() {
  const std::optional<PageWork::Piece> piece = page_work_.Next();
  if (!piece.has_value()) return std::nullopt;
  const Region& range = piece->range;
  ArenaSet& set = *sets_.at(range.set).set;
  absl::Status status;
  switch (piece->kind) {
    case PageWork::Kind::kMake:
      status = set.Commit(range.offset, range.bytes);
      break;
    case PageWork::Kind::kEndMeetings:
      if (set.EndSomeMeetings()) return std::nullopt;
      break;
    case PageWork::Kind::kGiveBack:
      set.Trim(range.offset, range.bytes);
      break;
    case PageWork::Kind::kDrop:
      if (set.DropSome()) return std::nullopt;
      sets_.erase(range.set);
      break;
  }
  std::optional<PageWork::Made> made = page_work_.Done(*piece, status);
  if (made.has_value() && !made->status.ok()) {
    made->status =
        absl::Status(made->status.code(),
                     absl::StrCat("making ", made->bytes,
                                  " bytes of staging on each rank: ", made->status.message()));
  }
  return made;
}

std::vector<ArenaSetId> ArenaTable::TakeWithoutPages() {
  std::vector<ArenaSetId> without;
  const uint64_t num_lost = PageGuard::num_lost();
  if (std::exchange(num_lost_pages_, num_lost) == num_lost) return without;
  for (auto& [id, entry] : sets_) {
    const bool lost = entry.in_use && entry.set != nullptr && entry.set->lost_pages();
    if (lost && !std::exchange(entry.lost_pages, true)) without.push_back(id);
  }
  return without;
}

void ArenaTable::LeavePages() {
  for (auto& [unused, entry] : sets_) {
    if (entry.set != nullptr) entry.set->LeavePages();
  }
}

}  // namespace epd
