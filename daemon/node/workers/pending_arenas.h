// The arenas that the worker made for a formation, until every local session has been sent them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/control/node_effects.h"
#include "daemon/core/ids.h"
#include "daemon/node/handover/handover_fields.h"
#include "daemon/packet/packet_channel.h"
#include "proto/epd/v1/attach.pb.h"
#include "proto/epd/v1/handover.pb.h"
#include "proto/epd/v1/worker.pb.h"

namespace epd {

class PendingArenas {
 public:
  // Keeps the arenas of a TenantReady that is OK; those of the group's earlier formations are
  // dropped.
  //   INTERNAL  not two descriptors per arena, and one per landing arena
  absl::Status Put(const v1::TenantReady& ready, std::vector<UniqueFd> fds);

  // Adds to `joined.arenas` for the session of `reply` and returns the descriptors in the same order:
  // of every rank of the group that has one here, its own read-write, the others read-only, and the landing arenas of other
  // workers' ranks. After the last local session the descriptors are dropped.
  //   INTERNAL  the formation's arenas are not there
  // `self`: the worker whose book this is.
  absl::StatusOr<PacketChannel::Fds> Take(const ReplyJoined& reply, const WorkerId& self,
                                          v1::Joined& joined);

  void Forget(GroupId group) { groups_.erase(group); }
  // The worker is gone, and its arenas with it.
  void Clear() { groups_.clear(); }

  void Save(v1::HandoverWorker& out, OutgoingFds& fds) const;
  void Restore(const v1::HandoverWorker& in, IncomingFds& fds);

 private:
  struct Arena {
    v1::TenantReady::Arena made;
    std::shared_ptr<UniqueFd> read_write;  // Null of a landing arena.
    std::shared_ptr<UniqueFd> read_only;   // Both null where the arena has a handle.
  };
  struct Entry {
    Formation formation;
    uint64_t stream_region_offset = 0;
    uint64_t stream_region_bytes = 0;
    std::map<Rank, Arena> arenas;  // By TenantReady.Arena.rank.
    std::set<SessionId> served;
  };
  std::map<GroupId, Entry> groups_;
};

}  // namespace epd
