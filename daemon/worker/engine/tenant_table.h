// The sessions that a worker knows, the formations of its tenants, and the arenas that these have.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "daemon/core/ids.h"
#include "daemon/worker/engine/admission_queue.h"
#include "daemon/worker/engine/effects.h"
#include "daemon/worker/engine/tenant.h"
#include "daemon/worker/staging/staging.h"
#include "proto/epd/v1/limits.h"
#include "proto/epd/v1/segment.h"

namespace epd {

// Owns tenants, from their start until they are forgotten: ended ones say why for a while. The queue is told when
// arenas come back. Not thread-safe.
class TenantTable {
 public:
  using ByFormation = std::map<std::pair<GroupId, Formation>, std::unique_ptr<Tenant>>;

  TenantTable(Incarnation self, uint64_t stream_region_bytes, Staging& staging,
              AdmissionQueue& queue, EngineEvent& event)
      : self_(self),
        stream_region_bytes_(stream_region_bytes),
        staging_(staging),
        queue_(queue),
        event_(event),
        ended_programs_(std::make_shared<ProgramMemory>(ProgramMemory{.max = kNoLimit})) {}

  struct Session {
    uint32_t uid = 0;
    uint32_t num_slots = limits::kMinOpSlots;
  };
  void AddSession(SessionId session, const Session& known) { sessions_[session] = known; }
  bool Knows(SessionId session) const { return sessions_.contains(session); }
  // 0: it is not known.
  uint32_t NumSlots(SessionId session) const;
  // The ranks that a session has in one tenant.
  struct Place {
    Tenant* tenant = nullptr;
    std::vector<Rank> ranks;
  };
  // Of all tenants that may have operations of it. A session that is in none costs nothing, however many tenants there are.
  std::vector<Place> PlacesOf(SessionId session) const;
  // While its process lives, its arenas stay charged. A second call says that it is gone.
  void EndSession(SessionId session, bool process_alive);

  //   INVALID_ARGUMENT    a member is missing, or its session is unknown
  //   ALREADY_EXISTS      this or a newer formation was started
  absl::Status CheckStart(const TenantStart& start) const;
  // What CheckStart takes. If the group cannot run here, the tenant has ended when this returns.
  //   RESOURCE_EXHAUSTED  there is no room for its arenas
  absl::Status Start(TenantStart start);
  // Reports a drained tenant and gives the arenas of a closed one back, once no operation of it is open.
  void ReleaseIfIdle(Tenant& tenant);
  // Of ended formations the oldest, where there are too many, and what the oldest of them remember beside why they ended, where
  // that is too much.
  void ForgetEnded();

  Tenant* Find(GroupId group, Formation formation) const;
  // The newest formation.
  Tenant* FindCurrent(GroupId group) const;
  // The one that a call is of, also if it has ended and is remembered, so that it says why its executions failed; else
  // the newest.
  Tenant* FindFor(const shm::SlotRequest& request) const;
  const ByFormation& all() const { return tenants_; }

 private:
  static constexpr uint64_t kNoLimit = UINT64_MAX / 4;  // It may be doubled.

  // Of a tenant that starts, and whose peers are known.
  static ArenaSetKey MakeArenaSetKey(const Tenant& tenant);
  // Its programs count as its uid's until it is gone.
  void JoinShare(Tenant& tenant);
  absl::Status TakeArenas(Tenant& tenant, const ArenaSetKey& key);
  void DropArenaSets(const std::vector<ArenaSetId>& sets);
  void NoteEnded(Tenant& tenant);
  void ForgetOldest();
  void AddPlaces(Tenant& tenant);
  void RemovePlaces(const Tenant& tenant);

  const Incarnation self_;
  const uint64_t stream_region_bytes_;
  Staging& staging_;
  AdmissionQueue& queue_;
  EngineEvent& event_;
  std::map<SessionId, Session> sessions_;
  std::map<uint32_t, std::shared_ptr<ProgramMemory>> program_memory_;  // By uid.
  ByFormation tenants_;
  std::map<SessionId, std::map<ByFormation::key_type, Place>> places_;  // PlacesOf.

  struct Ended {
    ByFormation::key_type key;
    size_t past_bytes = 0;  // Of its past operations, as it ended.
  };
  // In the order in which they did; few have late calls that wait yet.
  std::deque<Ended> ended_;
  size_t num_without_members_ = 0;                 // The oldest ones.
  size_t num_without_past_ = 0;                    // Likewise.
  size_t ended_past_bytes_ = 0;                    // Of the others.
  std::shared_ptr<ProgramMemory> ended_programs_;  // Of all of them.
};

}  // namespace epd
