// The arenas of a worker's tenants. They are made and taken down a few at a time, between turns, and their pages are made and given
// back in processes of their own, a little of each user at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/backend/backend.h"
#include "daemon/shared_memory/page_processes.h"
#include "daemon/worker/engine/effects.h"
#include "daemon/worker/shell/memory_watch.h"
#include "daemon/worker/shell/page_work.h"

namespace epd {

// Exec thread only.
class ArenaTable {
 public:
  // `budget_bytes`: of the pool of memory that is not on a device. `program`: PageProcesses'.
  ArenaTable(uint64_t budget_bytes, std::string program)
      : budget_{.budget_bytes = budget_bytes},
        memory_(budget_bytes, &ReadMachineFile),
        processes_(std::move(program)) {}

  // `max_bytes_of_uid`: what a user's sets may have in memory, while some of that is to be given back. Before the first set.
  void LimitUsers(uint64_t max_bytes_of_uid) { max_bytes_of_uid_ = max_bytes_of_uid; }
  //   RESOURCE_EXHAUSTED  descriptors
  absl::Status Start() { return processes_.Start(); }
  // Readable when pages have been made or given back: then Work has something to do.
  int ready_fd() const { return processes_.ready_fd(); }

  // `backend` outlives this. Looks how much memory there is.
  void Create(const CreateArenas& effect, Backend& backend, absl::Time now);
  // OK once the arenas are there. UNAVAILABLE: not yet. NOT_FOUND: there are none, or none any more. Anything else: why there will
  // be none.
  absl::Status Ready(ArenaSetId set) const;
  // Null: there is none, or it is being dropped.
  ArenaSet* Find(ArenaSetId set) const;
  Backend* FindBackend(ArenaSetId set) const;
  // Whose it is; 0 where there is none.
  uint32_t UidOf(ArenaSetId set) const;

  // False: the set is gone.
  bool Commit(const CommitPages& effect);
  // As PageWork::Cancel.
  std::optional<PageWork::Made> Cancel(const CancelPages& effect);
  void Drop(ArenaSetId set);

  // Takes what is made and given back, and begins what comes next. Whose pages are there with it, or never will be.
  std::vector<PageWork::Made> Work(absl::Time now);
  // Whether Work has something to do before ready_fd() is readable.
  bool has_work() const {
    return may_begin_ || !unmade_.empty() || !dropped_.empty() || processes_.has_done();
  }
  // Whether it may be soon.
  bool awaits_pages() const { return processes_.awaits_soon(); }

  // When somebody is late who makes or gives back pages, or memory that was short is to be looked at; then Tick.
  absl::Time next_deadline() const {
    return std::min(processes_.next_deadline(), memory_.next_look());
  }
  void Tick(absl::Time now);
  // For the log.
  std::vector<std::string> TakeWarnings(absl::Time now);
  // How much memory there is for staging, at the last look.
  const MemoryWatch& memory() const { return memory_; }
  std::optional<std::map<uint32_t, std::string>> TakeProblems() {
    return processes_.TakeProblems();
  }

  // What users have not given back whose next piece has been waited for for more than a second.
  uint64_t LateBytes(absl::Time now) const;

  // Sets of which pages could not be had when they were touched (page_guard.h); each once.
  std::vector<ArenaSetId> TakeWithoutPages();
  // This process ends, and with it nobody says any more that regions are freed: a rank that reads what was good would read
  // zeros and not know it.
  void LeavePages() { leaves_pages_ = true; }

 private:
  struct Entry {
    std::unique_ptr<ArenaSet> set;  // Null: `problem`.
    Backend* backend = nullptr;
    uint32_t uid = 0;
    absl::Status problem;
    bool in_use = true;  // Until it is dropped.
    bool lost_pages = false;
  };
  // What is of one user.
  struct User {
    User(PageBudget& budget, uint64_t max_bytes)
        : work(budget, kPagesAtOnce, kPageBytes, max_bytes) {}

    PageWork work;
    std::optional<PageWork::Piece> begun;
    absl::Time begun_at;
  };
  const Entry* FindUsed(ArenaSetId set) const;
  void Begin(uint32_t uid, User& user, const PageWork::Piece& piece, absl::Time now);
  void End(User& user, const absl::Status& status);
  void TakeDone(absl::Time now);
  void BeginAll(absl::Time now);
  void DropSome();

  // Over all arenas: half a millisecond's, which another operation of the same user waits for it.
  static constexpr uint64_t kPagesAtOnce = uint64_t{2} << 20;
  static constexpr uint64_t kPageBytes = 4096;

  std::map<ArenaSetId, Entry> sets_;
  std::deque<ArenaSetId> unmade_;
  std::deque<ArenaSetId> dropped_;  // Their pages are back.
  PageBudget budget_;
  MemoryWatch memory_;
  uint64_t max_bytes_of_uid_ = UINT64_MAX;
  std::map<uint32_t, User> users_;  // By uid.
  bool may_begin_ = false;          // Somebody's work, as far as is known.
  PageProcesses processes_;
  std::vector<PageWork::Made> made_;
  bool leaves_pages_ = false;
  uint64_t num_lost_pages_ = 0;  // Of the process, that were looked at.
};

}  // namespace epd
