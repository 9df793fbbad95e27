#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/rpc/node_api/group_facts.h"
#include "daemon/rpc/node_api/node_answers.h"
#include "daemon/rpc/node_api/quotas.h"

namespace epd {
namespace {

// Pages of a segment stay until it goes.
v1::MemoryRegion SegmentRegion(std::string owner, std::string kind, const SharedSegment& segment) {
  const uint64_t bytes = segment.committed_bytes();
  v1::MemoryRegion region;
  region.set_owner(std::move(owner));
  region.set_kind(std::move(kind));
  region.set_address_bytes(segment.bytes());
  region.set_committed_bytes(bytes);
  region.set_in_use_bytes(bytes);
  region.set_peak_bytes(bytes);
  return region;
}

// An arena's place among those of its set: the j-th rank of a session has the session's j-th.
using ArenaKey = std::pair<uint64_t, uint32_t>;

// Every arena of a set has the same regions and the same committed pages, so each has an equal part
// of the set's bytes.
void FillArenas(const v1::WorkerSnapshot::ArenaSet& set,
                const std::map<uint64_t, GroupStatus>& groups, const WorkerId& self,
                v1::MemoryRegion& region) {
  std::map<ArenaKey, v1::MemoryRegion::Arena> arenas;
  for (const uint64_t id : set.group_ids()) {
    const auto group = groups.find(id);
    if (group == groups.end()) continue;
    for (const RankPhase& held : group->second.ranks) {
      const RankHolder& holder = held.holder;
      if (holder.server() != self) continue;
      v1::MemoryRegion::Arena& arena = arenas[{holder.session.value, holder.arena_index}];
      arena.set_session_id(holder.session.value);
      arena.set_pid(holder.pid);
      arena.set_committed_bytes(set.committed_bytes() / set.num_arenas());
      arena.set_in_use_bytes(set.in_use_bytes() / set.num_arenas());
      v1::MemoryRegion::Arena::User& user = *arena.add_users();
      user.set_group(group->second.spec.name);
      user.set_tenant(group->second.spec.tenant);
      user.set_rank(holder.rank.value);
    }
  }
  for (auto& [key, arena] : arenas) *region.add_arenas() = std::move(arena);
}

v1::MemoryRegion StagingRegion(const v1::WorkerSnapshot::ArenaSet& set,
                               const std::map<uint64_t, GroupStatus>& known, const WorkerId& self) {
  std::vector<std::string> groups;
  for (const uint64_t id : set.group_ids()) {
    const auto group = known.find(id);
    groups.push_back(group == known.end() ? absl::StrCat("id ", id)
                                          : absl::StrCat("group ", Title(group->second.spec)));
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
  if (set.num_arenas() > 0) FillArenas(set, known, self, region);
  return region;
}

void FillTenants(const Node& node, const WorkerEntry& entry,
                 const std::map<uint64_t, GroupStatus>& groups, v1::GetMemoryResponse& response) {
  const Settings& settings = node.settings();
  for (const v1::WorkerSnapshot::Tenant& tenant : entry.supervisor.figures().snapshot.tenants()) {
    const auto group = groups.find(tenant.group_id());
    if (tenant.ended() || group == groups.end()) continue;
    v1::GetMemoryResponse::Tenant& out = *response.add_tenants();
    out.set_group(group->second.spec.name);
    out.set_tenant(group->second.spec.tenant);
    out.set_uid(tenant.uid());
    out.set_worker(ToString(entry.name));
    PutStaging("max_staging_per_tenant", settings.max_staging_per_tenant, settings,
               tenant.staging_bytes(), *out.mutable_quota());
  }
}

void FillWorker(const Node& node, const WorkerEntry& entry,
                const std::map<uint64_t, GroupStatus>& groups, v1::GetMemoryResponse& response) {
  const std::string worker = ToString(entry.name);
  const int first = response.regions_size();
  // A dead worker's arenas are gone; its figures are not.
  if (entry.supervisor.running()) {
    for (const auto& set : entry.supervisor.figures().snapshot.arena_sets())
      *response.add_regions() = StagingRegion(set, groups, {node.id(), entry.name});
    FillTenants(node, entry, groups, response);
  }
  for (const auto& [id, session] : node.clients().sessions()) {
    const auto slots = session->slots.find(entry.name);
    if (slots == session->slots.end()) continue;
    v1::MemoryRegion region =
        SegmentRegion(absl::StrCat("slots of session ", id.value, " (pid ", session->peer.pid, ")"),
                      "slots", slots->second.segment);
    region.add_session_ids(id.value);
    *response.add_regions() = std::move(region);
  }
  *response.add_regions() = SegmentRegion("outcome records", "records", entry.records);
  for (int i = first; i < response.regions_size(); ++i) {
    response.mutable_regions(i)->set_worker(worker);
  }
  if (entry.name.on_gpu()) FillGpu(entry, *response.add_gpus());
}

}  // namespace

absl::Status Fill(const Node& node, const v1::GetMemoryRequest&, v1::GetMemoryResponse& response) {
  std::map<uint64_t, GroupStatus> groups;
  for (GroupStatus& group : KnownGroups(node)) groups[group.id.value] = std::move(group);
  for (const auto& [name, entry] : node.workers()) FillWorker(node, *entry, groups, response);
  for (const auto& [uid, use] : UsesOfWorkers(node)) {
    if (use.staging_bytes() == 0) continue;
    v1::User& user = *response.add_users();
    user.set_uid(uid);
    PutStaging("max_staging_per_uid", node.settings().max_staging_per_uid, node.settings(),
               use.staging_bytes(), *user.add_quotas());
  }
  if (response.gpus_size() > 0) *response.mutable_gpu() = response.gpus(0);
  const v1::WorkerSnapshot& snapshot = node.worker().figures().snapshot;
  if (node.worker().running()) {
    response.set_pool_committed_bytes(snapshot.pool_committed_bytes());
  }
  response.set_pool_bytes(node.settings().staging_bytes);
  response.set_pool_peak_bytes(snapshot.pool_peak_bytes());
  return absl::OkStatus();
}

}  // namespace epd
