#include "daemon/node/workers/pending_arenas.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace epd {
namespace {

size_t NumDescriptors(const v1::TenantReady::Arena& made) {
  if (!made.landing_ranks().empty()) return 1;
  return made.handle().empty() ? 2 : 0;
}

}  // namespace

absl::Status PendingArenas::Put(const v1::TenantReady& ready, std::vector<UniqueFd> fds) {
  size_t num_expected = 0;
  for (const v1::TenantReady::Arena& made : ready.arenas()) num_expected += NumDescriptors(made);
  if (fds.size() != num_expected) {
    return absl::InternalError(absl::StrCat("the worker sent ", fds.size(), " descriptors for ",
                                            ready.arenas_size(), " arenas, expected ",
                                            num_expected));
  }
  Entry entry;
  entry.formation = Formation(ready.formation());
  entry.stream_region_offset = ready.stream_region_offset();
  entry.stream_region_bytes = ready.stream_region_bytes();
  size_t next = 0;
  for (const v1::TenantReady::Arena& made : ready.arenas()) {
    Arena arena;
    arena.made = made;
    const size_t num = NumDescriptors(made);
    if (num > 1) arena.read_write = std::make_shared<UniqueFd>(std::move(fds[next++]));
    if (num > 0) arena.read_only = std::make_shared<UniqueFd>(std::move(fds[next++]));
    entry.arenas[Rank(made.rank())] = std::move(arena);
  }
  groups_[GroupId(ready.group_id())] = std::move(entry);
  return absl::OkStatus();
}

absl::StatusOr<PacketChannel::Fds> PendingArenas::Take(const ReplyJoined& reply,
                                                       const WorkerId& self, v1::Joined& joined) {
  const auto it = groups_.find(reply.group);
  if (it == groups_.end() || it->second.formation != reply.formation) {
    return absl::InternalError(
        absl::StrCat("no arenas of formation ", reply.formation.value, " are there"));
  }
  joined.set_stream_region_offset(it->second.stream_region_offset);
  joined.set_stream_region_bytes(it->second.stream_region_bytes);
  PacketChannel::Fds fds;
  std::set<SessionId> local;
  for (const RankHolder& member : reply.members) {
    const auto arena = it->second.arenas.find(member.rank);
    const bool here = member.server() == self;
    if (here) local.insert(member.session);
    if (arena == it->second.arenas.end()) {
      if (!here) continue;
      return absl::InternalError(
          absl::StrCat("the worker made no arena for rank ", member.rank.value));
    }
    const bool own = here && member.session == reply.session;
    const v1::TenantReady::Arena& made = arena->second.made;
    if (here && !made.landing_ranks().empty()) {
      return absl::InternalError(absl::StrCat("the worker made a landing arena for rank ",
                                              member.rank.value, ", which it serves itself"));
    }
    // A device knows no read-only descriptors; where the worker moves all rows, peers need none.
    const bool on_device = made.sharing() != v1::ARENA_SHARING_MEMFD;
    if (on_device && !own && reply.spec.executor == Executor::kWorker) continue;
    v1::Joined::Arena& out = *joined.add_arenas();
    out.set_rank(member.rank.value);
    out.set_bytes(made.bytes());
    out.set_own(own);
    out.set_sharing(made.sharing());
    out.set_handle(made.handle());
    out.set_device_uuid(made.device_uuid());
    *out.mutable_landing_ranks() = made.landing_ranks();
    if (!made.handle().empty()) continue;
    fds.push_back(own ? arena->second.read_write : arena->second.read_only);
  }
  std::set<SessionId>& served = it->second.served;
  served.insert(reply.session);
  if (served.size() >= local.size()) groups_.erase(it);
  return fds;
}

}  // namespace epd
