#include "daemon/node/arena_book.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace epd {

absl::Status ArenaBook::Put(const v1::TenantReady& ready, std::vector<UniqueFd> fds) {
  if (fds.size() != 2 * static_cast<size_t>(ready.arenas_size())) {
    return absl::InternalError(absl::StrCat("the worker sent ", fds.size(), " descriptors for ",
                                            ready.arenas_size(), " arenas, expected two each"));
  }
  Entry entry;
  entry.formation = Formation(ready.formation());
  for (int i = 0; i < ready.arenas_size(); ++i) {
    Arena arena;
    arena.bytes = ready.arenas(i).bytes();
    arena.read_write = std::make_shared<UniqueFd>(std::move(fds[static_cast<size_t>(2 * i)]));
    arena.read_only = std::make_shared<UniqueFd>(std::move(fds[static_cast<size_t>(2 * i + 1)]));
    entry.arenas[Rank(ready.arenas(i).rank())] = std::move(arena);
  }
  groups_[GroupId(ready.group_id())] = std::move(entry);
  return absl::OkStatus();
}

absl::StatusOr<PacketChannel::Fds> ArenaBook::Take(GroupId group, Formation formation,
                                                   const NodeId& self, SessionId session,
                                                   const std::vector<Placement>& members,
                                                   v1::Joined& joined) {
  const auto it = groups_.find(group);
  if (it == groups_.end() || it->second.formation != formation) {
    return absl::InternalError(
        absl::StrCat("no arenas of formation ", formation.value, " are there"));
  }
  PacketChannel::Fds fds;
  std::set<SessionId> local;
  for (const Placement& member : members) {
    if (member.node != self) continue;
    local.insert(member.session);
    const auto arena = it->second.arenas.find(member.rank);
    if (arena == it->second.arenas.end()) {
      return absl::InternalError(
          absl::StrCat("the worker made no arena for rank ", member.rank.value));
    }
    const bool own = member.session == session;
    v1::Joined::Arena& out = *joined.add_arenas();
    out.set_rank(member.rank.value);
    out.set_bytes(arena->second.bytes);
    out.set_own(own);
    fds.push_back(own ? arena->second.read_write : arena->second.read_only);
  }
  std::vector<SessionId>& served = it->second.served;
  if (std::find(served.begin(), served.end(), session) == served.end()) served.push_back(session);
  if (served.size() >= local.size()) groups_.erase(it);
  return fds;
}

}  // namespace epd
