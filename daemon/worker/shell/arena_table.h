// The arenas of a worker's tenants. They and their pages are made and given back a little at a time, between turns.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "daemon/backend/backend.h"
#include "daemon/worker/engine/effects.h"
#include "daemon/worker/shell/page_work.h"

namespace epd {

// Exec thread only.
class ArenaTable {
 public:
  // `budget_bytes`: of the pool of memory that is not on a device.
  explicit ArenaTable(uint64_t budget_bytes) : page_work_(budget_bytes, kPagesAtOnce) {}

  // `backend` outlives this.
  void Create(const CreateArenas& effect, Backend& backend);
  // OK once the arenas are there. UNAVAILABLE: not yet. NOT_FOUND: there are none, or none any more. Anything else: why there will
  // be none.
  absl::Status Ready(ArenaSetId set) const;
  // Null: there is none, or it is being dropped.
  ArenaSet* Find(ArenaSetId set) const;
  Backend* FindBackend(ArenaSetId set) const;

  // False: the set is gone.
  bool Commit(const CommitPages& effect);
  void Drop(ArenaSetId set);

  // Does some of it. Whose pages are there with it, or never will be.
  std::optional<PageWork::Made> Work();
  bool has_work() const { return !unmade_.empty() || !page_work_.empty(); }

  // Sets of which pages could not be had when they were touched (page_guard.h); each once.
  std::vector<ArenaSetId> TakeWithoutPages();
  // This process ends, and with it nobody says any more that regions are freed: a rank that reads what was good would read
  // zeros and not know it.
  void LeavePages();

 private:
  struct Entry {
    std::unique_ptr<ArenaSet> set;  // Null: `problem`.
    Backend* backend = nullptr;
    absl::Status problem;
    bool in_use = true;  // Until it is dropped.
    bool lost_pages = false;
  };
  const Entry* FindUsed(ArenaSetId set) const;
  std::optional<PageWork::Made> WorkOnPages();

  // Of a turn's memory, over all arenas: a call of somebody else waits 0.2 ms for it.
  static constexpr uint64_t kPagesAtOnce = uint64_t{256} << 10;

  std::map<ArenaSetId, Entry> sets_;
  std::deque<ArenaSetId> unmade_;
  PageWork page_work_;
  uint64_t num_lost_pages_ = 0;  // Of the process, that were looked at.
};

}  // namespace epd
