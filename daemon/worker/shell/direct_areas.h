// The areas in which ranks meet without the worker (direct_area.h), as the worker uses them: looks for others, ends
// generations, takes what the ranks have recorded.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "daemon/backend/backend.h"
#include "daemon/core/allowance.h"
#include "daemon/core/ids.h"
#include "daemon/worker/engine/direct_outcome.h"
#include "daemon/worker/engine/effects.h"
#include "daemon/worker/engine/tenant_start.h"
#include "daemon/worker/shell/touched_user.h"
#include "proto/epd/v1/direct_tail.h"
#include "proto/epd/v1/segment.h"

namespace epd {

// Areas are client memory: any words. They can make this worker wait for a moment before it drops their own set, and
// count nonsense for their own group. Exec thread only.
class DirectAreas {
 public:
  explicit DirectAreas(TouchedUser touched = TouchedUser()) : touched_(touched) {}

  // Of a formation of `uid`'s; `set` outlives it. Whether they are of use: all its ranks are here, and the set's arenas have
  // areas.
  bool Add(const ReportTenantReady& ready, uint32_t uid, std::vector<SessionId> sessions,
           ArenaSet& set);

  using Take = std::function<void(const DirectOutcome&)>;
  // The set is about to be dropped: what its ranks have recorded since the last time is taken now or never.
  void Drop(ArenaSetId set, absl::Time now, const Take& take);

  // What EndDirect asks for.
  void End(ArenaSetId set);
  // In which calls of the set's ranks may be published; 0: in none.
  uint32_t Generation(ArenaSetId set) const;

  // Whether every rank has published the call of this announce.
  bool HasMet(const shm::SlotRequest& request) const;

  // What was recorded since the last time; the rank of `request` has little room left, or: as often as clients may ask for it, or:
  // all, as often as looking where nothing was recorded takes little time. Of each user as much as a quarter of the time allows;
  // the rest comes the next time.
  void TakeIfMany(const shm::SlotRequest& request, absl::Time now, const Take& take);
  void TakeDue(absl::Time now, const Take& take);
  void TakeAll(absl::Time now, const Take& take);

  // What AwaitDirect asks for: `idle` hears of each formation once.
  void Await(const AwaitDirect& effect, absl::Time now);
  bool awaits() const { return !awaited_.empty(); }
  void Poll(absl::Time now, const std::function<bool(SessionId)>& lives,
            const std::function<void(GroupId, Formation)>& idle);

 private:
  using Name = std::pair<GroupId, Formation>;
  struct Ranks {
    ArenaSetId set;
    std::vector<SessionId> sessions;        // [num_ranks]
    std::vector<shm::DirectArea*> of_rank;  // [num_ranks]
  };
  struct Set {
    uint32_t uid = 0;
    std::vector<shm::DirectTail*> areas;
    std::vector<uint32_t>
        taken;         // [areas.size()] what stands in each area's `taken`, but believed.
    size_t first = 0;  // Whose turn it is.
    uint32_t generation = 1;
    absl::Time next_take = absl::InfinitePast();  // TakeIfMany and TakeDue do nothing before.
  };
  struct Awaited {
    absl::Time since;
    size_t rank =
        0;  // Those before it are in no call any more, and can begin none: their generation has ended.
  };
  bool IsIdle(const Name& name, const Ranks& ranks, const std::function<bool(SessionId)>& lives,
              size_t& rank) const;
  // Of all ranks; the next look may be once this one's time is a quarter of what has passed.
  void TakeFromAll(Set& set, absl::Time now, const Take& take);
  struct Looked {
    uint64_t records = 0;
    uint64_t routes = 0;  // To so many experts.
  };
  Looked TakeFrom(shm::DirectTail& tail, uint32_t& taken, const Take& take) const;
  // Whether the area is of the rank that the outcome names: a client may write anything, but of itself.
  bool IsOf(const shm::DirectArea& area, const DirectOutcome& outcome) const;

  TouchedUser touched_;
  std::map<Name, Ranks> ranks_;
  std::map<ArenaSetId, Set> sets_;
  std::map<uint32_t, Allowance> of_uid_;
  std::map<Name, Awaited> awaited_;
  absl::Time next_poll_ = absl::InfinitePast();
  absl::Time next_all_ = absl::InfinitePast();
};

}  // namespace epd
