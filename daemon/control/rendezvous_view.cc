// What nodes and operators get to see.
#include <utility>

#include "daemon/control/rendezvous_impl.h"

namespace epd {
namespace {

// Of groups that are larger, nodes hear of their own ranks only until a formation starts: all
// members in every view would make the messages grow with the square of the ranks.
constexpr uint32_t kManyRanks = 256;

}  // namespace

ClusterView Rendezvous::Impl::MakeView(const NodeId& id) {
  const KnownNode& node = nodes_.at(id);
  ClusterView view;
  view.coordinator = options_.incarnation;
  view.seq = next_view_seq_++;
  view.node = id;
  view.node_incarnation = node.incarnation;
  view.report_seq = node.taken_seq;
  for (const auto& [claim, known] : node.claims) {
    view.claims.push_back(
        {claim.first, claim.second, known.disposition, known.group, known.status});
  }
  for (const auto& [request, known] : node.orders) {
    if (known.done && IsKept(known)) view.orders.push_back({request, known.status, known.group});
  }
  for (const GroupId group : GroupsOf(id)) view.groups.push_back(ViewOf(groups_.at(group), id));
  return view;
}

// In which the node holds a rank, or serves one in the present epoch.
std::set<GroupId> Rendezvous::Impl::GroupsOf(const NodeId& id) const {
  std::set<GroupId> out;
  for (const auto& [key, known] : nodes_.at(id).claims) {
    if (known.disposition == ClaimDisposition::kGranted) out.insert(known.group);
  }
  for (const auto& [group_id, group] : groups_) {
    if (!CommunicatorOf(group).WorkersOn(id).empty()) out.insert(group_id);
  }
  return out;
}

// By rank.
std::vector<RankHolder> Rendezvous::Impl::OwnMembers(const ClusterGroup& group,
                                                     const NodeId& id) const {
  const KnownNode& node = nodes_.at(id);
  std::map<Rank, RankHolder> own;
  for (const auto& [claim, known] : node.claims) {
    if (known.disposition != ClaimDisposition::kGranted || known.group != group.id) continue;
    const ClaimKey key{id, node.incarnation, claim.first, claim.second};
    for (const Rank rank : known.claim.ranks) own[rank] = PlacementOf(key, rank);
  }
  std::vector<RankHolder> out;
  for (auto& [rank, holder] : own) out.push_back(std::move(holder));
  return out;
}

// What the node says of itself it says with each of its workers.
const GroupWork* Rendezvous::Impl::AnyWorkOf(const NodeId& id, GroupId group) const {
  const KnownNode& node = nodes_.at(id);
  const auto it = node.work.lower_bound({group, kCpuWorker});
  return it == node.work.end() || it->first.first != group ? nullptr : &it->second;
}

DerivedFromHolders& Rendezvous::Impl::Derived(ClusterGroup& group) const {
  if (!group.derived.has_value()) {
    DerivedFromHolders& derived = group.derived.emplace();
    std::vector<RankHolder> members;
    for (const auto& [rank, key] : group.holders) {
      members.push_back(PlacementOf(key, rank));
      // Neighbours are mostly served by one worker.
      const size_t n = members.size();
      if (n < 2 || members[n - 2].server() != members[n - 1].server())
        derived.workers.insert(members.back().server());
    }
    derived.members = std::move(members);
  }
  return *group.derived;
}

// What all nodes of a formation are told alike, once each; made once for all views of a call.
void Rendezvous::Impl::PutFormation(ClusterGroup& group, GroupView& view) {
  const auto [it, fresh] = told_.try_emplace(group.id);
  if (fresh) {
    it->second.bases = group.bases;
    std::vector<ServingWorker> workers;
    for (const auto& [id, bound] : CommunicatorOf(group).workers) {
      if (!bound.worker || !group.started) continue;
      const WorkerReport& worker = ReportOf(id);
      workers.push_back(
          {id.node, bound.worker, worker.wire_address, id.name, worker.local_address});
    }
    it->second.workers = std::move(workers);
  }
  view.members = Derived(group).members;
  view.bases = it->second.bases;
  view.workers = it->second.workers;
}

GroupView Rendezvous::Impl::ViewOf(ClusterGroup& group, const NodeId& node) {
  GroupView view;
  view.id = group.id;
  view.spec = group.spec;
  view.state = group.state;
  view.epoch = group.epoch;
  view.formation = group.formation;
  view.started = group.started;
  view.wait = group.state != GroupState::kDegraded;
  view.cause = group.cause;
  const GroupWork* work = AnyWorkOf(node, group.id);
  view.own_members_only = !group.started && group.spec.num_ranks > kManyRanks;
  view.kept = group.started && work != nullptr && work->heard == group.formation &&
              group.holders.size() == group.spec.num_ranks;
  if (view.own_members_only) {
    view.members = OwnMembers(group, node);
  } else if (!view.kept) {
    PutFormation(group, view);
  }
  for (const auto& [rank, holder] : group.dead) view.dead.push_back(holder);
  view.base_cause = group.base_cause;
  const ClusterCommunicator& communicator = CommunicatorOf(group);
  view.communicator = communicator.id;
  if (group.epoch == communicator.epoch) view.node_workers = communicator.WorkersOn(node);
  const bool bootstraps =
      group.epoch && group.epoch == communicator.epoch && !communicator.initialised &&
      !communicator.stale &&
      (group.state == GroupState::kBootstrapping || group.state == GroupState::kReforming);
  const auto maker = communicator.places.find(Rank{0});
  const bool makes = maker != communicator.places.end() && maker->second.node == node;
  if (bootstraps && !communicator.id_known && makes) view.id_maker = maker->second.name;
  view.id_stays = bootstraps && communicator.IdStays();
  view.id_known = bootstraps && communicator.id_known;
  if (view.id_known) view.unique_id = communicator.unique_id;
  view.no_id_reason = communicator.no_id_reason;
  return view;
}

std::vector<GroupStatus> Rendezvous::Impl::Groups() const {
  std::vector<GroupStatus> out;
  for (const auto& [names, id] : by_name_) {
    const ClusterGroup& group = groups_.at(id);
    GroupStatus status;
    status.id = id;
    status.spec = group.spec;
    status.state = group.state;
    status.epoch = group.epoch;
    status.formation = group.formation;
    status.orchestrated = group.orchestrated;
    status.since = group.since;
    status.cause = group.cause;
    for (const RankPhase& rank : HoldersOf(group, {}))
      status.ranks.push_back({rank.holder, rank.phase});
    for (uint32_t r = 0; r < group.spec.num_ranks; ++r) {
      if (group.holders.count(Rank{r}) == 0) status.missing.push_back(Rank{r});
    }
    for (const auto& [rank, holder] : group.dead) status.dead.push_back(holder);
    const ClusterCommunicator& communicator = CommunicatorOf(group);
    status.communicator = communicator.id;
    if (group.epoch == communicator.epoch) status.id_digest = communicator.id_digest;
    out.push_back(std::move(status));
  }
  return out;
}

std::vector<GroupSummary> Rendezvous::Impl::Summaries() const {
  std::vector<GroupSummary> out;
  for (const auto& [names, id] : by_name_)
    out.push_back({names.first, names.second, groups_.at(id).state});
  return out;
}

std::vector<NodeStatus> Rendezvous::Impl::Nodes() const {
  std::vector<NodeStatus> out;
  for (const auto& [id, node] : nodes_) {
    const WorkerReport& cpu = ReportOf(id, kCpuWorker);
    out.push_back({id, node.incarnation, cpu.incarnation, cpu.has_nccl, cpu.nccl_problem,
                   node.last_seen, node.claims.size(), node.lost, node.facts});
  }
  return out;
}

}  // namespace epd
