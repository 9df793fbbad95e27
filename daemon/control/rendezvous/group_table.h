// The groups of the cluster: their records, who enters and leaves them, and the one writer of their
// states.
#pragma once

#include "daemon/control/rendezvous/changes.h"
#include "daemon/control/rendezvous/claim_table.h"
#include "daemon/control/rendezvous/cluster_group.h"
#include "daemon/control/rendezvous/epoch_floors.h"

namespace epd {

class GroupTable {
 public:
  GroupTable(Incarnation coordinator, Changes& changes, ClaimTable& claims, EpochFloors& floors)
      : coordinator_(coordinator), changes_(changes), claims_(claims), floors_(floors) {}

  // ---- look-ups ----
  std::map<GroupId, ClusterGroup>& all() { return groups_; }
  const std::map<GroupId, ClusterGroup>& all() const { return groups_; }
  // By name and tenant.
  const std::map<std::pair<std::string, std::string>, GroupId>& names() const { return names_; }
  bool Has(GroupId id) const { return groups_.count(id) > 0; }
  ClusterGroup* Find(GroupId id);
  ClusterGroup& At(GroupId id) { return groups_.at(id); }
  const ClusterGroup& At(GroupId id) const { return groups_.at(id); }
  ClusterGroup* ByName(const std::string& name, const std::string& tenant);
  std::vector<ClusterGroup*> Tenants(const std::string& name);  // By tenant.
  ClusterCommunicator& Communicator(const ClusterGroup& group);
  const ClusterCommunicator& Communicator(const ClusterGroup& group) const;
  // In which the node holds a rank, or serves one in the present epoch.
  std::set<GroupId> OfNode(const NodeId& node) const;
  // Valid until the holders change.
  DerivedFromHolders& Derived(ClusterGroup& group) const;
  // By when it must have got on; while it forms its claims' deadlines count.
  absl::Time Deadline(const ClusterGroup& group) const;

  // ---- changes ----
  // Random when `proposed` is, and never the same twice: a claim that is placed anew after its node
  // was out of reach proposes what it proposed before.
  GroupId FreshId(GroupId proposed);
  ClusterGroup& Create(GroupId id, const GroupSpec& spec, bool orchestrated);
  // The claim becomes a member, and ceases to be one.
  void Grant(ClusterGroup& group, const ClaimKey& key);
  void Release(const ClaimKey& key, ClaimFate fate, const absl::Status& cause);
  // What a run of the node held and served is gone.
  void DropNode(const NodeId& node, const absl::Status& cause);
  // The only writer of a group's state.
  void Fire(ClusterGroup& group, GroupEvent event, const absl::Status& why);
  // Its formation serves: nothing is wrong with it, and nothing waited for.
  void Serve(ClusterGroup& group);
  // What follows from the first cause, until the group is READY again, does not hide it.
  void EndFormation(ClusterGroup& group, const absl::Status& cause);
  // Fails every member with `status` and closes the group; one made by an orchestrator forms again
  // after a formation error (event kFail). `group` is gone afterwards; operators who wait for that
  // are told `for_orders`.
  void End(ClusterGroup& group, GroupEvent event, const absl::Status& status,
           const absl::Status& for_orders = absl::OkStatus());
  // As an operator has drained it.
  void EndDrained(ClusterGroup& group, const absl::Status& for_orders);
  // Back to FORMING without any member.
  void Reset(ClusterGroup& group, const absl::Status& why);
  // Marks everything that may depend on the group.
  void Touch(const ClusterGroup& group);
  // ... and on what the tenants of the group share.
  void TouchTenants(const ClusterGroup& group);

 private:
  // The node's ranks are gone together: one cause names them all.
  void EndWithNode(ClusterGroup& group, const NodeId& node, const absl::Status& cause);
  // Where a rank has left nobody takes its place, so Joins that wait for the group's next formation wait for the next group.
  void GiveBackUnanswered(ClusterGroup& group);
  // While no tenant of the name is beyond FORMING, nodes forget the communicator: whoever completes
  // next begins another epoch.
  void DropUnusedEpoch(const std::string& name);

  Incarnation coordinator_;
  Changes& changes_;
  ClaimTable& claims_;
  EpochFloors& floors_;
  uint64_t next_group_ = 1;
  std::map<GroupId, ClusterGroup> groups_;
  std::map<std::pair<std::string, std::string>, GroupId> names_;
  std::map<std::string, ClusterCommunicator> communicators_;  // By name.
};

}  // namespace epd
