// Private to rendezvous*.cc. How it works: every input changes the records of nodes and claims,
// then Settle() places waiting claims and advances groups until nothing moves, then every node
// whose view may have changed gets a new one.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "daemon/control/cluster_group.h"
#include "daemon/control/formation_errors.h"
#include "daemon/control/rendezvous.h"
#include "daemon/control/used_ids.h"

namespace epd {

class Rendezvous::Impl {
 public:
  explicit Impl(const RendezvousOptions& options)
      : options_(options), global_floor_(options.floor) {
    for (const PersistentGroup& group : options.persistent) kept_.insert(group.id);
  }

  Effects OnNodeConnected(absl::Time now, const NodeId& node, Incarnation incarnation,
                          const NodeLink& link);
  Effects OnReports(absl::Time now, const std::vector<NodeReport>& reports);
  Effects OnNodeLost(absl::Time now, const NodeId& node, const absl::Status& cause);
  Effects OnKept(absl::Time now, const std::vector<PersistentGroup>& kept);
  Effects OnTick(absl::Time now);
  absl::Time NextDeadline() const;
  std::vector<GroupStatus> Groups() const;
  std::vector<GroupSummary> Summaries() const;
  std::vector<NodeStatus> Nodes() const;
  std::vector<PersistentGroup> Persistent() const;
  std::vector<std::string> WaitsWithoutEnd() const;
  const FormationReport* LastReport(const std::string& name) const;
  Epoch max_epoch() const { return max_epoch_; }

 private:
  using NodeMap = std::map<NodeId, KnownNode>;

  // ---- intake: rendezvous_intake.cc ----
  Effects Finish();
  void TakeClaims(const NodeReport& report);
  void DropNodeClaims(const NodeId& id, const absl::Status& cause);
  void Release(const ClaimKey& key, ClaimFate fate, const absl::Status& cause);
  void Expire();
  absl::Time EarliestOfAll() const;
  bool InGrace() const { return !grace_over_ && now_ < options_.started_at + options_.start_grace; }
  void Take(const NodeReport& report);
  // During the grace reports are only kept, and nodes go on as they were. Then all are taken at
  // once, so that a group that was READY under the predecessor is taken over as it is.
  void EndGraceIfDue();
  void RestorePersistent();
  bool HaveAllReported() const;
  bool Adopt(ClusterGroup& group);

  // ---- placing: rendezvous_place.cc ----
  void Settle();
  void PlaceWaiting(const std::string& name);
  void Place(const ClaimKey& key);
  void Recover(const ClaimKey& key);
  void PlaceIntoForming(ClusterGroup& group, const ClaimKey& key);
  void PlaceIntoFormed(ClusterGroup& group, const ClaimKey& key);
  void Grant(ClusterGroup& group, const ClaimKey& key);
  void Wait(const ClaimKey& key, const std::string& what_for);
  void Fail(const ClaimKey& key, const absl::Status& status);
  GroupId FreshId(GroupId proposed);
  ClusterGroup& Create(GroupId id, const GroupSpec& spec, bool orchestrated);
  // Why the tenant cannot be in an epoch with `other`.
  absl::Status ComparePlaces(const ClusterGroup& group, const ClusterGroup& other) const;
  // Why its ranks cannot be in one epoch.
  absl::Status CompareRanks(const ClusterGroup& group) const;
  std::vector<RankPhase> HoldersOf(const ClusterGroup& group, const std::vector<Rank>& ranks) const;

  // ---- steps: rendezvous_steps.cc ----
  void Advance(ClusterGroup& group);
  void CheckWorkers(ClusterGroup& group);
  std::string LostWorkers(ClusterGroup& group);  // Names of workers and nodes, or nothing.
  void Steps(ClusterGroup& group);
  bool SessionsDrained(const ClusterGroup& group) const;
  bool NeedsNewEpoch(const ClusterGroup& group) const;
  void NewEpoch(ClusterGroup& group, const absl::Status& why);
  // Whether the tenant is in the epoch; false: it had to end, its ranks are elsewhere.
  bool EnterEpoch(ClusterGroup& group);
  // These return whether the step is done; a failure ends the group.
  bool StepCompare(ClusterGroup& group);
  bool StepUniqueId(ClusterGroup& group);
  std::string WhyNoId(const ClusterGroup& group) const;
  bool TakeUniqueId(ClusterGroup& group, const GroupWork& work);
  bool StepInitialise(ClusterGroup& group);
  bool StepTenants(ClusterGroup& group);
  bool StartFormation(ClusterGroup& group);
  bool Recounted(const ClusterGroup& group) const;
  const GroupWork* BrokenWork(ClusterGroup& group) const;
  void FormAgain(ClusterGroup& group, const absl::Status& why);
  void RestAfterBreak(ClusterGroup& group) const;
  bool RecoverBases(ClusterGroup& group);
  void AdvanceDraining(ClusterGroup& group);
  void LoseRank(ClusterGroup& group, const absl::Status& cause);
  void EndFormation(ClusterGroup& group, const absl::Status& cause);
  // The only writer of a group's state.
  void Fire(ClusterGroup& group, GroupEvent event, const absl::Status& why);
  // Fails every member with `status` and closes the group; one made by an orchestrator forms again
  // after a formation error (event kFail). `group` is gone afterwards.
  void End(ClusterGroup& group, GroupEvent event, const absl::Status& status);
  void Reset(ClusterGroup& group, const absl::Status& why);
  // Keeps the whole report for LastReport.
  absl::Status LateError(const ClusterGroup& group, absl::Duration allowed);
  void AddWrong(const ClusterGroup& group, FormationReport& late) const;
  void RememberStale(const ClaimKey& key);
  std::string PhaseOf(const ClusterGroup& group, Rank rank) const;

  // ---- orders: rendezvous_orders.cc ----
  void TakeOrders(const NodeReport& report);
  void Execute(KnownOrder& order);
  // Returns whether nothing is left to wait for.
  bool ExecuteOn(ClusterGroup& group, const KnownOrder& order);
  void CreateByOrder(KnownOrder& order);
  // Whether what the order has done would outlive this coordinator, as far as it should.
  bool IsKept(const KnownOrder& order) const;
  void ExpireOrders();
  void FinishOrdersOf(GroupId group, const absl::Status& status);

  // ---- views: rendezvous_view.cc ----
  ClusterView MakeView(const NodeId& id);
  std::set<GroupId> GroupsOf(const NodeId& node) const;
  GroupView ViewOf(ClusterGroup& group, const NodeId& node);
  void PutFormation(ClusterGroup& group, GroupView& view);
  const GroupWork* AnyWorkOf(const NodeId& node, GroupId group) const;
  std::vector<RankHolder> OwnMembers(const ClusterGroup& group, const NodeId& node) const;

  // ---- look-ups ----
  KnownClaim* Find(const ClaimKey& key);
  const KnownClaim* Find(const ClaimKey& key) const;
  const KnownNode* NodeOf(const NodeId& id) const;
  // Down, without anything said, where it has not reported.
  const WorkerReport& ReportOf(const NodeId& id, const WorkerName& name) const;
  const WorkerReport& ReportOf(const WorkerId& id) const { return ReportOf(id.node, id.name); }
  const GroupWork* WorkOf(const WorkerId& id, GroupId group) const;
  ClusterGroup* ByName(const std::string& name, const std::string& tenant);
  std::vector<ClusterGroup*> TenantsOf(const std::string& name);  // By tenant.
  ClusterCommunicator& CommunicatorOf(const ClusterGroup& group);
  const ClusterCommunicator& CommunicatorOf(const ClusterGroup& group) const;
  RankHolder PlacementOf(const ClaimKey& key, Rank rank) const;
  WorkerName WorkerOf(const ClaimKey& key, Rank rank) const;
  // Binds the epoch's ranks to the workers that their claims name.
  void BindWorkers(const ClusterGroup& group, ClusterCommunicator& communicator) const;
  std::set<ClaimKey> MembersOf(const ClusterGroup& group) const;
  // Valid until the holders change.
  DerivedFromHolders& Derived(ClusterGroup& group) const;
  absl::Time FormingDeadline(const ClusterGroup& group) const;
  // Marks everything that may depend on the group.
  void Touch(const ClusterGroup& group);
  // ... and on what the tenants of the group share.
  void TouchTenants(const ClusterGroup& group);

  RendezvousOptions options_;
  absl::Time now_ = absl::InfinitePast();
  uint64_t next_view_seq_ = 1;
  uint64_t next_arrival_ = 1;
  uint64_t next_group_ = 1;
  NodeMap nodes_;
  std::map<GroupId, ClusterGroup> groups_;
  std::map<std::pair<std::string, std::string>, GroupId> by_name_;  // By name and tenant.
  std::map<std::string, ClusterCommunicator> communicators_;        // By name.
  std::map<std::string, std::set<std::pair<uint64_t, ClaimKey>>>
      waiting_;  // By name, in order of arrival.
  // Epochs of closed groups' names; `global_floor_` stands for those that are forgotten or come
  // from a predecessor.
  std::map<std::string, Epoch> floors_;
  Epoch global_floor_;
  Formation formation_floor_;  // Of groups that a predecessor formed.
  UsedIds used_ids_;
  Epoch max_epoch_;                                 // Highest that this coordinator has given out.
  std::map<std::string, FormationReport> reports_;  // By group name.
  std::map<std::string, std::vector<std::pair<RankHolder, absl::Time>>> stale_;  // By group name.
  // No later than the deadline of any claim; exact after each tick.
  absl::Time earliest_ = absl::InfiniteFuture();
  std::set<GroupId> kept_;  // What the next coordinator would hear of.
  bool grace_over_ = false;
  bool adopting_ = false;
  std::map<NodeId, NodeReport> held_;  // What nodes reported during the grace.
  // Work of the present call.
  std::set<GroupId> dirty_groups_;
  std::set<std::string> dirty_names_;
  std::set<NodeId> dirty_nodes_;
  struct Told {
    SharedList<ExecutionBase> bases;
    SharedList<ServingWorker> workers;
  };
  std::map<GroupId, Told> told_;  // In all views of the present call.
  Effects effects_;
};

}  // namespace epd
