// The groups that a node has members in or serves: what the coordinator says of each, and the
// tenants that the workers run for it.
#pragma once

#include "daemon/control/node/coordinator_link.h"
#include "daemon/control/node/local_communicators.h"
#include "daemon/control/node/local_workers.h"
#include "daemon/control/node/membership_table.h"
#include "daemon/control/node/outbox.h"
#include "daemon/control/node_state.h"

namespace epd {

class LocalGroups {
 public:
  LocalGroups(const NodeId& node, const LocalWorkers& workers, CoordinatorLink& link,
              MembershipTable& memberships, LocalCommunicators& communicators, Outbox& outbox)
      : node_(node),
        workers_(workers),
        link_(link),
        memberships_(memberships),
        communicators_(communicators),
        outbox_(outbox) {}

  // Takes the coordinator's view of each group; one that it does not name has ended.
  void Take(const ClusterView& view);
  // Brings workers and members of each group to what its view says: tells them the difference.
  void Reconcile();

  // The formation need not wait for the coordinator to hear of it: tenants end, peers are told.
  void Lose(const LostMember& lost);
  void LoseWorker(const WorkerDied& event);
  // On all workers of this node.
  void EndTenants(GroupId group, const absl::Status& status);
  void EndAllTenants(const absl::Status& status);

  // Workers' answers; one that is out of date is ignored.
  void TakeReady(const TenantReady& event);
  void TakeFailed(const TenantFailed& event);
  void TakeBroken(const TenantBroken& event);
  void TakeDrained(const TenantDrained& event);

  std::set<std::string_view> Names() const;
  std::vector<LocalGroupStatus> Statuses() const;  // By name, tenant, id.
  void PutInto(NodeReport& report) const;

  const std::map<GroupId, LocalGroup>& all() const { return groups_; }
  void Restore(std::map<GroupId, LocalGroup> groups) { groups_ = std::move(groups); }

 private:
  using Tenant = LocalTenant;
  using Group = LocalGroup;

  void TakeView(Incarnation coordinator, const GroupView& theirs, Group& group);
  // Calls in its present formation fail from now on. Returns the first cause of that.
  const absl::Status& NoteTrouble(Group& group, const absl::Status& cause);
  // Who serves what here. A worker that has a tenant still keeps it until that has ended.
  void AssignWorkers();
  // That serve the group here, as the coordinator says, or, if it does not know, its members.
  std::set<WorkerName> Serving(const GroupView& view) const;
  void EndTenants(Group& group, const absl::Status& status);
  // Ends a formation that the view ends and that was never READY, as far as this node knows, with what the view says, not with
  // what ended the one before.
  void EndUnserved(Group& group);
  static Formation LastServed(const Group& group);  // As far as this node knows; zero: none.
  // Why that one is over: `cause`, unless another one came before.
  static const absl::Status& FirstCause(Group& group, const absl::Status& cause);
  void ForgetWork(const WorkerName& dead);
  void ReconcileTenants(Group& group);
  void BreakIfReady(Group& group, Tenant& tenant);
  bool LocalMembersLive(const Group& group) const;
  // The formation that sessions and workers should be in; zero: none.
  static Formation Wanted(const Group& group);
  // Whether every worker of this node that serves the group does so in `formation`.
  static bool IsServed(const Group& group, Formation formation);
  // The running tenant that an answer is about; null: it is out of date.
  Tenant* Answering(Incarnation worker, GroupId group, Formation formation);

  NodeId node_;
  const LocalWorkers& workers_;
  CoordinatorLink& link_;
  MembershipTable& memberships_;
  LocalCommunicators& communicators_;
  Outbox& outbox_;
  std::map<GroupId, Group> groups_;
};

}  // namespace epd
