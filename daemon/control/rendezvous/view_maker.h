// What nodes and operators get to see.
#pragma once

#include "daemon/control/rendezvous/claim_table.h"
#include "daemon/control/rendezvous/formation_reports.h"
#include "daemon/control/rendezvous/group_table.h"
#include "daemon/control/rendezvous/node_table.h"
#include "daemon/control/rendezvous/operator_orders.h"

namespace epd {

class ViewMaker {
 public:
  ViewMaker(Incarnation coordinator, const NodeTable& nodes, const ClaimTable& claims,
            GroupTable& groups, const OperatorOrders& orders, const FormationReports& reports)
      : coordinator_(coordinator),
        nodes_(nodes),
        claims_(claims),
        groups_(groups),
        orders_(orders),
        reports_(reports) {}

  // One view for each of these nodes; what they are told alike is made once.
  std::vector<RendezvousEffect> Make(const std::set<NodeId>& nodes);

  std::vector<GroupStatus> GroupStatuses() const;
  std::vector<GroupSummary> GroupSummaries() const;
  std::vector<NodeStatus> NodeStatuses() const;

 private:
  // What all nodes of a formation are told alike.
  struct Shared {
    SharedList<ExecutionBase> bases;
    SharedList<ServingWorker> workers;
  };

  ClusterView View(const NodeId& id);
  // `own`: the node's claims that are granted the group.
  GroupView ViewGroup(ClusterGroup& group, const NodeId& node, const std::vector<ClaimKey>& own);
  void PutFormation(ClusterGroup& group, GroupView& view);
  void PutCommunicator(const ClusterGroup& group, const NodeId& node, GroupView& view) const;
  SharedList<RankHolder> OwnMembers(ClusterGroup& group, const std::vector<ClaimKey>& own) const;

  Incarnation coordinator_;
  const NodeTable& nodes_;
  const ClaimTable& claims_;
  GroupTable& groups_;
  const OperatorOrders& orders_;
  const FormationReports& reports_;
  uint64_t next_seq_ = 1;
  std::map<GroupId, Shared> shared_;  // Of the views that are being made.
};

}  // namespace epd
