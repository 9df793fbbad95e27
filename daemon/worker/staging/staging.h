// Arena sets of tenants and the regions of operations in them, over the control side's pool.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/core/ids.h"
#include "daemon/worker/staging/eager_area.h"
#include "daemon/worker/staging/staging_pool.h"

namespace epd {

// Which arenas a set has: the j-th rank of a session has that session's j-th arena. In rank order.
// Session 0: of a rank of another worker; the j-th such has an arena of its own, or lies in landing arena j - kInLandingArena.
inline constexpr uint32_t kInLandingArena = uint32_t{1} << 31;
using ArenaSetKey = std::vector<std::pair<SessionId, uint32_t>>;

// A region, and what must be done to memory before it may be used.
struct StagingGrant {
  Region region;
  std::vector<Trim> trims;
  Region commit;  // bytes 0: every page is there.
};

// Arenas of device memory: an allocation each, which is there whole from its start.
struct DeviceArenas {
  uint64_t arena_bytes = 0;
  uint64_t stream_region_bytes =
      0;  // At offset 0, for operations on streams; the rest is for the others.
};

// Shares one arena set among all tenants of the same sessions, keeps track of which pages exist,
// and holds back sets whose dead session's process lives. Pure bookkeeping; not thread-safe.
class Staging {
 public:
  Staging(uint64_t budget_bytes, uint64_t page_bytes, EagerOptions eager = {},
          uint64_t device_budget_bytes = 0)
      : pool_(budget_bytes, page_bytes),
        device_pool_(device_budget_bytes, page_bytes),
        eager_options_(eager) {}

  struct Lease {
    ArenaSetId set;
    bool created = false;
  };
  // The set of a tenant, whose sessions are `uid`'s; one more user of it.
  absl::StatusOr<Lease> Acquire(const ArenaSetKey& key, uint32_t uid = 0);
  // A set of its own, of device memory.
  //   RESOURCE_EXHAUSTED  the device's staging has not that much left
  absl::StatusOr<Lease> AcquireOnDevice(const ArenaSetKey& key, const DeviceArenas& device);
  // One user less. Returns the sets that nobody uses and whose arenas can be dropped.
  std::vector<ArenaSetId> Release(ArenaSetId set);

  // The session is dead. While its process lives, its sets stay charged and are never reused.
  void SessionDead(SessionId session, bool process_alive);
  // The process of a dead session is gone. Returns sets whose arenas can be dropped.
  std::vector<ArenaSetId> ProcessGone(SessionId session);

  // Of the pool, without eager buffers, no more than `max_of_uid` bytes of the set's user are committed then.
  //   RESOURCE_EXHAUSTED  does not fit now
  absl::StatusOr<StagingGrant> Allocate(ArenaSetId set, uint64_t bytes,
                                        uint64_t max_of_uid = UINT64_MAX);
  // Whether that is so with what could be had of other sets of the user, however much there is in the pool.
  bool FitsUid(ArenaSetId set, uint64_t bytes, uint64_t max_of_uid) const;
  // In the pool, without eager buffers.
  uint64_t CommittedBytes(uint32_t uid) const;
  void Free(const Region& region);
  void SetWithheld(uint64_t bytes) { pool_.SetWithheld(bytes); }
  void SetShortage(uint64_t bytes, std::string why) { pool_.SetShortage(bytes, std::move(why)); }
  const std::string& why_short() const { return pool_.why_short(); }
  // Before the Allocate of an operation: gives the set eager buffers for rows of `stage_bytes`, or more than it has, if nothing
  // else is in use in it and the pool has some to spare. Their pages are part of the next commit. `several`: see shm::EagerDemand.
  void WantEagerBuffers(ArenaSetId set, uint64_t stage_bytes, bool several);
  // Whose pages exist; none yet, or ever: no eager buffers.
  EagerArea FindEagerArea(ArenaSetId set) const;
  // One of them in the arenas of other workers' ranks, which nobody else takes before it is free again.
  std::optional<uint8_t> TakeLanding(ArenaSetId set);
  void FreeLanding(ArenaSetId set, uint8_t eager_buffer);
  size_t num_landings() const;  // That are taken.
  const EagerOptions& eager_options() const { return eager_options_; }
  uint64_t eager_bytes() const { return eager_bytes_; }  // Of all arenas of all sets.

  // The pages of [0, `end`) exist in all arenas of the set.
  void Committed(ArenaSetId set, uint64_t end);
  // Whether `bytes` could be had if no other operation were open.
  bool EverFits(ArenaSetId set, uint64_t bytes) const;
  // The same as long as memory is short.
  bool FitsInMemory(ArenaSetId set, uint64_t bytes) const;

  const StagingPool& pool() const { return pool_; }
  const StagingPool& device_pool() const { return device_pool_; }
  uint64_t arena_bytes() const {
    return pool_.budget_bytes();
  }  // Of those that are not on a device.
  uint64_t arena_bytes(ArenaSetId set) const;
  // What operations of the set may take at most, over all its arenas; for messages.
  uint64_t room_bytes(ArenaSetId set) const;
  std::vector<SessionId> SessionsOf(ArenaSetId set) const;  // None: there is no such set.
  // What a region of `bytes` takes of the pool, over all arenas of the set.
  uint64_t ChargeOf(ArenaSetId set, uint64_t bytes) const;
  // By uid: what is in use in the pool, without eager buffers, with what dead sessions still hold.
  std::map<uint32_t, uint64_t> InUseByUid() const;

 private:
  struct Set {
    ArenaSetKey key;
    int num_users = 0;
    uint32_t uid = 0;
    int num_regions = 0;  // Of operations.
    uint64_t committed_end = 0;
    std::set<SessionId> lingering;  // Dead sessions whose process lives.
    bool quarantined = false;       // All of it is one quarantined region.
    std::optional<Region> eager;    // At offset 0.
    std::set<uint8_t> landings;     // Eager buffers of session 0's arenas that are taken.
    uint64_t device_bytes = 0;      // Of an arena on a device; 0: it is not on one.
    std::optional<Region> stream_region;
  };
  uint64_t EagerBytesOf(uint32_t uid) const;
  // What the pool is told, which counts eager buffers, too.
  uint64_t MaxWithEager(const Set& set, uint64_t max_of_uid) const;
  StagingPool& PoolOf(const Set& set) { return set.device_bytes > 0 ? device_pool_ : pool_; }
  void DropEagerBuffers(Set& set);
  void Quarantine(ArenaSetId id, Set& set);
  bool DropIfIdle(ArenaSetId id);
  Set& AddSet(ArenaSetId id, const ArenaSetKey& key);

  StagingPool pool_;
  StagingPool device_pool_;
  const EagerOptions eager_options_;
  uint64_t eager_bytes_ = 0;
  std::map<ArenaSetId, Set> sets_;
  std::map<ArenaSetKey, ArenaSetId> by_key_;
  std::map<SessionId, std::set<ArenaSetId>> by_session_;  // The sets that it has arenas in.
  uint64_t next_set_ = 1;
};

}  // namespace epd
