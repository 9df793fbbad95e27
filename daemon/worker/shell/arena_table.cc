#include "daemon/worker/shell/arena_table.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/shared_memory/page_guard.h"
#include "proto/failpoint/failpoint.h"

namespace epd {
namespace {

constexpr absl::Duration kLate = absl::Seconds(1);

absl::Status NoMemory(int error) {
  return absl::ResourceExhaustedError(
      absl::StrCat("the node has no memory for them (", std::strerror(error),
                   "); free memory or raise its limit, or start epd with a smaller pool"));
}

uint64_t BytesOf(const PageProcesses::Task& task) {
  uint64_t bytes = 0;
  for (const FilePages& pages : task.pages) bytes += pages.bytes;
  return bytes;
}

}  // namespace

void ArenaTable::Create(const CreateArenas& effect, Backend& backend, absl::Time now) {
  if (!IsOnDevice(backend.name())) memory_.Look(budget_.present_bytes, now);
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
  entry.uid = effect.uid;
  const auto user = users_.try_emplace(effect.uid, budget_, max_bytes_of_uid_).first;
  user->second.work.Add(effect.set, effect.num_arenas);
  if (!IsOnDevice(backend.name())) processes_.Hold(effect.uid);
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

uint32_t ArenaTable::UidOf(ArenaSetId set) const {
  const auto entry = sets_.find(set);
  return entry == sets_.end() ? 0 : entry->second.uid;
}

bool ArenaTable::Commit(const CommitPages& effect) {
  const Entry* const entry = FindUsed(effect.range.set);
  if (entry == nullptr || entry->set == nullptr) return false;
  for (const Trim& trim : effect.trims) {
    const auto other = sets_.find(trim.set);
    if (other == sets_.end() || other->second.set == nullptr) continue;
    users_.at(other->second.uid).work.GiveBack(trim);
  }
  users_.at(entry->uid).work.Make(effect.operation, effect.range);
  may_begin_ = true;
  return true;
}

std::optional<PageWork::Made> ArenaTable::Cancel(const CancelPages& effect) {
  const auto found = sets_.find(effect.set);
  if (found == sets_.end() || found->second.set == nullptr) return std::nullopt;
  may_begin_ = true;
  return users_.at(found->second.uid).work.Cancel(effect.operation, effect.set);
}

// A device's memory is back when this returns: the next set's may have to come from it.
void ArenaTable::Drop(ArenaSetId set) {
  const auto found = sets_.find(set);
  if (found == sets_.end()) return;
  std::erase(unmade_, set);
  Entry& entry = found->second;
  if (entry.set != nullptr && !IsOnDevice(entry.backend->name())) {
    entry.in_use = false;
    may_begin_ = true;
    return users_.at(entry.uid).work.Drop(set);
  }
  if (entry.set != nullptr) users_.at(entry.uid).work.Forget(set);
  sets_.erase(found);
}

std::vector<PageWork::Made> ArenaTable::Work(absl::Time now) {
  if (leaves_pages_) return {};
  if (!unmade_.empty() && !sets_.at(unmade_.front()).set->MakeSome()) unmade_.pop_front();
  TakeDone(now);
  if (!dropped_.empty()) DropSome();
  if (may_begin_) BeginAll(now);
  return std::exchange(made_, {});
}

// What ends of one user's may be what another's waits for.
void ArenaTable::BeginAll(absl::Time now) {
  while (std::exchange(may_begin_, false)) {
    for (auto& [uid, user] : users_) {
      if (user.begun.has_value()) continue;
      const std::optional<PageWork::Piece> next = user.work.Next();
      if (next.has_value()) Begin(uid, user, *next, now);
    }
  }
  std::erase_if(users_, [&](const auto& user) {
    const bool gone = !user.second.work.has_sets();
    if (gone) processes_.Release(user.first, now);
    return gone;
  });
}

void ArenaTable::TakeDone(absl::Time now) {
  for (const PageProcesses::Done& done : processes_.TakeDone(now)) {
    User& user = users_.at(static_cast<uint32_t>(done.id));
    // What cannot be given back stays charged to the node; nothing else depends on it.
    const bool failed = done.error != 0 && user.begun->kind == PageWork::Kind::kMake;
    End(user, failed ? NoMemory(done.error) : absl::OkStatus());
  }
}

void ArenaTable::Begin(uint32_t uid, User& user, const PageWork::Piece& piece, absl::Time now) {
  user.begun = piece;
  user.begun_at = now;
  const Region& range = piece.range;
  PageProcesses::Task task = {.id = uid, .action = PageAction::kGiveBack, .pages = {}};
  const ArenaSet& set = *sets_.at(range.set).set;
  switch (piece.kind) {
    case PageWork::Kind::kMake:
      if (EPD_FAILPOINT_FAILS("worker.arena.no_space")) return End(user, NoMemory(ENOSPC));
      task.action = PageAction::kMake;
      task.pages = set.PagesOf(range.offset, range.bytes);
      if (const absl::Status may = memory_.MayMake(BytesOf(task), budget_.present_bytes, now);
          !may.ok()) {
        return End(user, may);
      }
      break;
    case PageWork::Kind::kEndMeetings:
      task.pages = set.MeetingPages();
      break;
    case PageWork::Kind::kGiveBack:
      task.pages = set.PagesOf(range.offset, range.bytes);
      break;
    case PageWork::Kind::kDrop:
      return dropped_.push_back(range.set);
  }
  if (task.pages.empty()) return End(user, absl::OkStatus());
  processes_.Add(uid, std::move(task), now);
}

void ArenaTable::End(User& user, const absl::Status& status) {
  may_begin_ = true;
  const PageWork::Piece piece = *std::exchange(user.begun, std::nullopt);
  std::optional<PageWork::Made> made = user.work.Done(piece, status);
  if (!made.has_value()) return;
  if (!made->status.ok()) {
    made->status =
        absl::Status(made->status.code(),
                     absl::StrCat("making ", made->bytes,
                                  " bytes of staging on each rank: ", made->status.message()));
  }
  made_.push_back(*std::move(made));
}

void ArenaTable::Tick(absl::Time now) {
  processes_.Tick(now);
  if (now >= memory_.next_look()) memory_.Look(budget_.present_bytes, now);
}

std::vector<std::string> ArenaTable::TakeWarnings(absl::Time now) {
  std::vector<std::string> warnings;
  for (PageProcesses::Warning& warning : processes_.TakeWarnings())
    warnings.push_back(std::move(warning.text));
  if (std::optional<std::string> line = memory_.TakeLine(now); line.has_value())
    warnings.push_back(*std::move(line));
  return warnings;
}

uint64_t ArenaTable::LateBytes(absl::Time now) const {
  uint64_t bytes = 0;
  for (const auto& [unused, user] : users_) {
    const bool gives_back = user.begun.has_value() && user.begun->kind != PageWork::Kind::kMake;
    if (gives_back && now >= user.begun_at + kLate) bytes += user.work.BytesNotBack();
  }
  return bytes;
}

void ArenaTable::DropSome() {
  const auto dropped = sets_.find(dropped_.front());
  if (dropped->second.set->DropSome()) return;
  User& user = users_.at(dropped->second.uid);
  sets_.erase(dropped);
  dropped_.pop_front();
  End(user, absl::OkStatus());
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

}  // namespace epd
