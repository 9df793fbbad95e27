// Who of a group is how far, and what the coordinator says of a group that is late.
#pragma once

#include "daemon/control/rendezvous/changes.h"
#include "daemon/control/rendezvous/claim_table.h"
#include "daemon/control/rendezvous/cluster_group.h"
#include "daemon/control/rendezvous/group_table.h"
#include "daemon/control/rendezvous/node_table.h"

namespace epd {

// Owns what is remembered of late formations and of those who came with an old epoch.
class FormationReports {
 public:
  FormationReports(const Changes& changes, const NodeTable& nodes, const ClaimTable& claims,
                   const GroupTable& groups)
      : changes_(changes), nodes_(nodes), claims_(claims), groups_(groups) {}

  // Of these of the group's ranks, or of all, those that are held.
  std::vector<RankPhase> Holders(const ClusterGroup& group,
                                 const std::vector<Rank>& ranks = {}) const;
  // Keeps the whole report for Last().
  absl::Status Late(const ClusterGroup& group, absl::Duration allowed);
  // The claim came with an epoch that is over.
  void RememberStale(const ClaimKey& key);
  // The last formation of this name that was late; null: none that is remembered.
  const FormationReport* Last(const std::string& name) const;

 private:
  std::string Phase(const ClusterGroup& group, Rank rank) const;
  void AddWrong(const ClusterGroup& group, FormationReport& late) const;

  const Changes& changes_;
  const NodeTable& nodes_;
  const ClaimTable& claims_;
  const GroupTable& groups_;
  std::map<std::string, FormationReport> reports_;                               // By group name.
  std::map<std::string, std::vector<std::pair<RankHolder, absl::Time>>> stale_;  // By group name.
};

}  // namespace epd
