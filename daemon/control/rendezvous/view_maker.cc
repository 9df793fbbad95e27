#include "daemon/control/rendezvous/view_maker.h"

namespace epd {
namespace {

// Of groups that are larger, nodes hear of their own ranks only until a formation starts: all
// members in every view would make the messages grow with the square of the ranks.
constexpr uint32_t kManyRanks = 256;

}  // namespace

std::vector<RendezvousEffect> ViewMaker::Make(const std::set<NodeId>& nodes) {
  std::vector<RendezvousEffect> out;
  for (const NodeId& id : nodes) {
    if (nodes_.Find(id) != nullptr) out.push_back(SendView{View(id)});
  }
  shared_.clear();
  return out;
}

ClusterView ViewMaker::View(const NodeId& id) {
  const KnownNode& node = nodes_.At(id);
  ClusterView view;
  view.coordinator = coordinator_;
  view.seq = next_seq_++;
  view.node = id;
  view.node_incarnation = node.incarnation;
  view.report_seq = node.taken_seq;
  std::map<GroupId, std::vector<ClaimKey>> granted;
  for (const auto& [key, known] : claims_.OfNode(id)) {
    if (known.disposition == ClaimDisposition::kGranted) granted[known.group].push_back(key);
    view.claims.push_back({key.session, key.request, known.disposition, known.group, known.status});
  }
  view.orders = orders_.Answers(id);
  for (const GroupId group : groups_.OfNode(id))
    view.groups.push_back(ViewGroup(groups_.At(group), id, granted[group]));
  return view;
}

// By rank. All members, which are known already, where no other node has one.
SharedList<RankHolder> ViewMaker::OwnMembers(ClusterGroup& group,
                                             const std::vector<ClaimKey>& own) const {
  size_t num_ranks = 0;
  for (const ClaimKey& key : own) num_ranks += claims_.At(key).claim.ranks.size();
  if (num_ranks == group.ranks.holders.size()) return groups_.Derived(group).members;
  std::map<Rank, RankHolder> held;
  for (const ClaimKey& key : own) {
    for (const Rank rank : claims_.At(key).claim.ranks) held[rank] = claims_.Holder(key, rank);
  }
  std::vector<RankHolder> out;
  for (auto& [rank, holder] : held) out.push_back(std::move(holder));
  return out;
}

void ViewMaker::PutFormation(ClusterGroup& group, GroupView& view) {
  const auto [it, fresh] = shared_.try_emplace(group.id);
  if (fresh) {
    it->second.bases = group.cut.bases;
    std::vector<ServingWorker> workers;
    for (const auto& [id, bound] : groups_.Communicator(group).workers) {
      if (!bound.worker || !group.started) continue;
      const WorkerReport& worker = nodes_.Worker(id);
      workers.push_back({id.node, bound.worker, worker.wire_address, id.name, worker.local_address,
                         worker.wire_secret});
    }
    it->second.workers = std::move(workers);
  }
  view.members = groups_.Derived(group).members;
  view.bases = it->second.bases;
  view.workers = it->second.workers;
}

GroupView ViewMaker::ViewGroup(ClusterGroup& group, const NodeId& node,
                               const std::vector<ClaimKey>& own) {
  GroupView view;
  static_cast<GroupFacts&>(view) = group;
  view.started = group.started;
  view.wait = group.state != GroupState::kDegraded;
  const GroupWork* work = nodes_.AnyWork(node, group.id);
  view.own_members_only = !group.started && group.spec.num_ranks > kManyRanks;
  view.kept =
      group.started && work != nullptr && work->heard == group.formation && group.complete();
  if (view.own_members_only) {
    view.members = OwnMembers(group, own);
  } else if (!view.kept) {
    PutFormation(group, view);
  }
  view.dead = group.former();
  view.base_cause = group.cut.cause;
  PutCommunicator(group, node, view);
  return view;
}

void ViewMaker::PutCommunicator(const ClusterGroup& group, const NodeId& node,
                                GroupView& view) const {
  const ClusterCommunicator& communicator = groups_.Communicator(group);
  view.communicator = communicator.id;
  if (group.epoch == communicator.epoch) view.node_workers = communicator.WorkersOn(node);
  const bool bootstraps =
      group.epoch && group.epoch == communicator.epoch && !communicator.initialised &&
      !communicator.stale &&
      (group.state == GroupState::kBootstrapping || group.state == GroupState::kReforming);
  const auto maker = communicator.worker_of.find(Rank{0});
  const bool makes = maker != communicator.worker_of.end() && maker->second.node == node;
  if (bootstraps && !communicator.id_known && makes) view.id_maker = maker->second.name;
  view.id_stays = bootstraps && communicator.IdStays();
  view.id_known = bootstraps && communicator.id_known;
  if (view.id_known) view.unique_id = communicator.unique_id;
  view.no_id_reason = communicator.no_id_reason;
}

std::vector<GroupStatus> ViewMaker::GroupStatuses() const {
  std::vector<GroupStatus> out;
  for (const auto& [names, id] : groups_.names()) {
    const ClusterGroup& group = groups_.At(id);
    GroupStatus status;
    static_cast<GroupFacts&>(status) = group;
    status.orchestrated = group.orchestrated;
    status.since = group.since;
    status.ranks = reports_.Holders(group);
    status.missing = group.missing();
    status.dead = group.former();
    const ClusterCommunicator& communicator = groups_.Communicator(group);
    status.communicator = communicator.id;
    if (group.epoch == communicator.epoch) status.id_digest = communicator.id_digest;
    out.push_back(std::move(status));
  }
  return out;
}

std::vector<GroupSummary> ViewMaker::GroupSummaries() const {
  std::vector<GroupSummary> out;
  for (const auto& [names, id] : groups_.names())
    out.push_back({names.first, names.second, groups_.At(id).state});
  return out;
}

std::vector<NodeStatus> ViewMaker::NodeStatuses() const {
  std::vector<NodeStatus> out;
  for (const auto& [id, node] : nodes_.all()) out.push_back({id, node.last_seen, node.lost});
  return out;
}

}  // namespace epd
