#include "daemon/rpc/node_api/group_facts.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/codec/codec.h"
#include "daemon/control/formation_errors.h"

namespace epd {
namespace {

GroupStatus FromLocal(const LocalGroupStatus& local) {
  const GroupView& view = local.view;
  GroupStatus group;
  static_cast<GroupFacts&>(group) = view;
  group.communicator = view.communicator;
  group.since = local.since;
  group.dead = view.dead;
  if (!local.trouble.ok()) {
    group.state = GroupState::kDegraded;
    group.cause = local.trouble;
  }
  for (const RankHolder& member : view.members) {
    group.ranks.push_back({member, group.state == GroupState::kReady ? "ready" : "arrived"});
  }
  if (view.own_members_only) return group;  // The coordinator knows who is missing.
  std::set<Rank> held;
  for (const RankHolder& member : view.members) held.insert(member.rank);
  for (uint32_t rank = 0; rank < view.spec.num_ranks; ++rank) {
    if (held.count(Rank(rank)) == 0) group.missing.emplace_back(rank);
  }
  return group;
}

// Hex of what this node's own worker got, "none: why", or empty before.
std::string LocalDigest(const Node& node, GroupId group) {
  for (const LocalGroupStatus& local : node.control().Groups()) {
    if (local.view.id == group) return local.id_digest;
  }
  return "";
}

bool IsNone(const std::string& digest) { return absl::StartsWith(digest, "none"); }

// The oldest open operation of a group, and how old what its worker said is now; null: none.
struct Oldest {
  const v1::WorkerSnapshot::Operation* operation = nullptr;
  absl::Duration said;
  absl::Duration age() const { return FromProto(operation->age()) + said; }
};

Oldest OldestOperation(const Node& node, GroupId group) {
  Oldest oldest;
  for (const auto& [name, entry] : node.workers()) {
    const WorkerSupervisor::Figures& figures = entry->supervisor.figures();
    for (const auto& operation : figures.snapshot.operations()) {
      if (operation.group_id() != group.value) continue;
      const Oldest one{&operation, MonotonicNow() - figures.snapshot_at};
      if (oldest.operation == nullptr || one.age() > oldest.age()) oldest = one;
    }
  }
  return oldest;
}

void AddFigures(const Node& node, GroupId group, v1::Group& out) {
  for (const auto& [name, entry] : node.workers()) {
    const v1::WorkerSnapshot& snapshot = entry->supervisor.figures().snapshot;
    for (const auto& operation : snapshot.operations()) {
      if (operation.group_id() == group.value)
        out.set_num_open_operations(out.num_open_operations() + 1);
    }
    for (const auto& tenant : snapshot.tenants()) {
      if (tenant.group_id() != group.value || tenant.ended()) continue;
      out.set_generation(tenant.generation());
      out.set_link(tenant.link());
      out.set_link_reason(tenant.link_reason());
    }
  }
}

void FillHolder(const RankHolder& holder, v1::Rank& out) {
  PutHolder(holder, out);
  out.set_session_id(holder.session.value);
}

void FillDetails(const Node& node, const std::string& group, const RankHolder& holder,
                 v1::Rank& out) {
  const ClientGateway::RankDetails* details =
      node.client_gateway().FindDetails(holder.session, group, holder.rank);
  if (details == nullptr) return;
  out.set_device(details->device);
  out.set_program(details->program);
  out.set_metadata(details->metadata);
}

// Where a living rank of a READY group stands in the group's oldest open operation.
void FillPhase(const Oldest& oldest, v1::Rank& out) {
  const v1::WorkerSnapshot::Operation& operation = *oldest.operation;
  const auto& late = operation.waiting_for();
  const bool awaited = absl::c_linear_search(late, out.rank());
  out.set_phase(awaited ? absl::StrCat("absent_in_", operation.phase()) : operation.phase());
  *out.mutable_phase_age() = ToProto(oldest.age());
}

v1::GroupState ToProto(GroupState state) {
  return static_cast<v1::GroupState>(static_cast<int>(state) + 1);
}
static_assert(static_cast<int>(GroupState::kForming) + 1 == v1::GROUP_STATE_FORMING);
static_assert(static_cast<int>(GroupState::kDraining) + 1 == v1::GROUP_STATE_DRAINING);
static_assert(static_cast<int>(GroupState::kClosed) + 1 == v1::GROUP_STATE_CLOSED);

}  // namespace

std::vector<GroupStatus> KnownGroups(const Node& node) {
  if (node.coordination().is_here()) return node.coordination().rendezvous().Groups();
  std::vector<GroupStatus> groups;
  for (const LocalGroupStatus& local : node.control().Groups()) groups.push_back(FromLocal(local));
  return groups;
}

std::vector<GroupSummary> KnownSummaries(const Node& node) {
  if (node.coordination().is_here()) return node.coordination().rendezvous().Summaries();
  std::vector<GroupSummary> groups;
  for (const GroupStatus& group : KnownGroups(node))
    groups.push_back({group.spec.name, group.spec.tenant, group.state});
  return groups;
}

std::vector<v1::Rank> DescribeRanks(const Node& node, const GroupStatus& group) {
  std::map<uint32_t, v1::Rank> ranks;
  const absl::Duration age = MonotonicNow() - group.since;
  const Oldest oldest =
      group.state == GroupState::kReady ? OldestOperation(node, group.id) : Oldest{};
  const std::string hex = LocalDigest(node, group.id);
  const std::string digest = IsNone(hex) ? "" : absl::HexStringToBytes(hex);
  for (uint32_t rank = 0; rank < group.spec.num_ranks; ++rank) {
    ranks[rank].set_phase("missing");
    *ranks[rank].mutable_phase_age() = ToProto(age);
  }
  for (const RankHolder& dead : group.dead) {
    FillHolder(dead, ranks[dead.rank.value]);
    ranks[dead.rank.value].set_phase("dead");
  }
  for (const RankPhase& held : group.ranks) {
    v1::Rank& out = ranks[held.holder.rank.value];
    FillHolder(held.holder, out);
    out.set_phase(held.phase);
    const bool is_local = held.holder.node == node.id();
    if (is_local) FillDetails(node, group.spec.name, held.holder, out);
    if (is_local) out.set_unique_id_sha256(digest);
    if (is_local) out.set_worker(ToString(held.holder.worker));
    if (oldest.operation != nullptr) FillPhase(oldest, out);
  }
  for (auto rival = group.rivals.rbegin(); rival != group.rivals.rend(); ++rival)
    ranks[rival->who.rank.value].add_contested_by(DescribeRival(*rival));
  for (uint32_t expert = 0; expert < group.spec.num_experts; ++expert) {
    ranks[ExpertOwner(group.spec, expert).value].add_experts(expert);
  }
  std::vector<v1::Rank> out;
  for (auto& [number, rank] : ranks) {
    rank.set_group_id(group.id.value);
    rank.set_group(group.spec.name);
    rank.set_tenant(group.spec.tenant);
    rank.set_rank(number);
    out.push_back(std::move(rank));
  }
  return out;
}

v1::Group DescribeGroup(const Node& node, const GroupStatus& group) {
  v1::Group out;
  out.set_group_id(group.id.value);
  out.set_communicator_id(group.communicator.value);
  *out.mutable_spec() = ToProto(group.spec);
  out.set_state(ToProto(group.state));
  out.set_epoch(group.epoch.value);
  out.set_formation(group.formation.value);
  for (v1::Rank& rank : DescribeRanks(node, group)) *out.add_ranks() = std::move(rank);
  if (!group.cause.ok()) *out.mutable_last_error() = ToProto(group.cause);
  *out.mutable_state_age() = ToProto(MonotonicNow() - group.since);
  out.set_persistent(group.orchestrated);
  const std::string digest = LocalDigest(node, group.id);
  if (IsNone(digest)) out.set_unique_id_note(digest);
  AddFigures(node, group.id, out);
  AddTotals(node, group.id, out);
  return out;
}

void AddTotals(const Node& node, GroupId group, v1::Group& out) {
  out.set_counted_by(node.id().value);
  for (const auto& [name, entry] : node.workers()) {
    const GroupTotals::Counts totals = entry->totals.Of(group);
    // All of its workers see each operation, and each the calls, routes and bytes of its ranks.
    out.set_num_operations(std::max(out.num_operations(), totals.num_operations));
    out.set_num_failed(std::max(out.num_failed(), totals.num_failed));
    out.set_num_failed_calls(out.num_failed_calls() + totals.num_failed_calls);
    out.set_bytes_moved(out.bytes_moved() + totals.bytes_moved);
    const int num_experts = static_cast<int>(totals.expert_routes.size());
    out.mutable_expert_routes()->Resize(std::max(out.expert_routes_size(), num_experts), 0);
    for (int e = 0; e < num_experts; ++e)
      out.set_expert_routes(e, out.expert_routes(e) + totals.expert_routes[static_cast<size_t>(e)]);
  }
}

absl::Status NoSuchGroup(const Node& node, const std::string& name) {
  std::vector<std::string> names;
  for (const GroupStatus& group : KnownGroups(node)) names.push_back(group.spec.name);
  return absl::NotFoundError(
      absl::StrCat("there is no group '", absl::CHexEscape(name), "' on node ", node.id().value,
                   "; there ", names.empty() ? "are none" : "are: ", absl::StrJoin(names, ", ")));
}

}  // namespace epd
