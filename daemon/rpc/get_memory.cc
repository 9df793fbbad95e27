#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/rpc/answer.h"
#include "daemon/rpc/group_facts.h"
#include "daemon/rpc/node_service.h"

namespace epd {
namespace {

v1::MemoryRegion WordsRegion(std::string owner, std::string kind, uint64_t bytes) {
  v1::MemoryRegion region;
  region.set_owner(std::move(owner));
  region.set_kind(std::move(kind));
  region.set_address_bytes(bytes);
  region.set_committed_bytes(bytes);  // Made whole at the start.
  region.set_in_use_bytes(bytes);
  region.set_peak_bytes(bytes);
  return region;
}

v1::MemoryRegion StagingRegion(const v1::WorkerSnapshot::ArenaSet& set,
                               const std::map<uint64_t, std::string>& names) {
  std::vector<std::string> groups;
  for (const uint64_t id : set.group_ids()) {
    const auto name = names.find(id);
    groups.push_back(name == names.end() ? absl::StrCat("id ", id) : name->second);
  }
  v1::MemoryRegion region;
  region.set_owner(groups.empty()
                       ? absl::StrCat("arenas of sessions ", absl::StrJoin(set.session_ids(), ","),
                                      " (no group)")
                       : absl::StrCat("arenas of ", absl::StrJoin(groups, ",")));
  region.set_kind("staging");
  region.set_address_bytes(set.num_arenas() * set.arena_bytes());
  region.set_committed_bytes(set.committed_bytes());
  region.set_in_use_bytes(set.in_use_bytes());
  region.set_peak_bytes(set.peak_bytes());
  region.set_quarantined_bytes(set.quarantined_bytes());
  *region.mutable_group_ids() = set.group_ids();
  *region.mutable_session_ids() = set.session_ids();
  return region;
}

absl::Status Fill(const Node& node, v1::GetMemoryResponse& response) {
  std::map<uint64_t, std::string> names;
  for (const GroupStatus& group : KnownGroups(node))
    names[group.id.value] = absl::StrCat("group ", group.spec.name);
  const v1::WorkerSnapshot& snapshot = node.worker().figures().snapshot;
  // A dead worker's arenas are gone; its figures are not.
  if (node.worker().running()) {
    for (const auto& set : snapshot.arena_sets())
      *response.add_regions() = StagingRegion(set, names);
    response.set_pool_committed_bytes(snapshot.pool_committed_bytes());
  }
  for (const auto& [id, session] : node.clients().sessions()) {
    v1::MemoryRegion region =
        WordsRegion(absl::StrCat("slots of session ", id.value, " (pid ", session->peer.pid, ")"),
                    "slots", session->slots.bytes());
    region.add_session_ids(id.value);
    *response.add_regions() = std::move(region);
  }
  *response.add_regions() = WordsRegion("outcome records", "records", node.records().bytes());
  response.set_pool_bytes(node.settings().staging_bytes);
  response.set_pool_peak_bytes(snapshot.pool_peak_bytes());
  return absl::OkStatus();
}

}  // namespace

NodeService::Unary* NodeService::GetMemory(Context* context, const v1::GetMemoryRequest*,
                                           v1::GetMemoryResponse* response) {
  return AnswerWithFigures(context, node_, [this, response] { return Fill(node_, *response); });
}

}  // namespace epd
