// What operators want done to groups, until their nodes have heard how it went.
#pragma once

#include "daemon/control/rendezvous/changes.h"
#include "daemon/control/rendezvous/formation_reports.h"
#include "daemon/control/rendezvous/group_table.h"

namespace epd {

struct KnownOrder {
  Order order;
  absl::Time deadline;
  bool done = false;
  absl::Status status;
  GroupId group;               // The first tenant's.
  std::set<GroupId> draining;  // Tenants that it still waits for.
  std::set<GroupId> changed;   // Tenants that it made or ended.
};

class OperatorOrders {
 public:
  // `keeps`: somebody keeps what operators make and says so with SetKept; only then are they answered.
  OperatorOrders(bool keeps, const std::vector<PersistentGroup>& kept, Changes& changes,
                 GroupTable& groups, const FormationReports& reports)
      : keeps_(keeps), changes_(changes), groups_(groups), reports_(reports) {
    Keep(kept);
  }

  // Carries out what is new in the report, and forgets what it does not repeat.
  void Take(const NodeReport& report);
  void DropNode(const NodeId& node);
  // The next coordinator would hear of exactly these.
  void SetKept(const std::vector<PersistentGroup>& kept);
  // The store refuses to keep them: those that wait for it are answered with why.
  void RefuseToKeep(const absl::Status& why);
  // Orders that wait for the group's end are done.
  void TakeEnded(const EndedGroup& ended);
  // Ends those that are done, but of which nobody promises that it stays so.
  void Expire();

  // Of the node's orders, those that are done and kept.
  std::vector<OrderAnswer> Answers(const NodeId& node) const;
  // No later than any deadline that Expire has to look at; exact after Tighten().
  absl::Time Earliest() const { return earliest_; }
  void Tighten();
  std::vector<std::string> WaitsWithoutEnd() const;

 private:
  void Keep(const std::vector<PersistentGroup>& kept);
  void EndUnkept(const NodeId& node, KnownOrder& known, const std::string& why);
  void Execute(const NodeId& node, KnownOrder& known);
  void Create(KnownOrder& known);
  // Whether what the order has done would outlive this coordinator, as far as it should.
  bool IsKept(const KnownOrder& known) const;

  bool keeps_;
  Changes& changes_;
  GroupTable& groups_;
  const FormationReports& reports_;
  std::set<GroupId> kept_;
  std::map<std::pair<NodeId, RequestId>, KnownOrder> orders_;
  absl::Time earliest_ = absl::InfiniteFuture();
};

}  // namespace epd
