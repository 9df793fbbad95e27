// Which waiting claim becomes a member of which group, and why one cannot enter.
#pragma once

#include "daemon/control/rendezvous/claim_table.h"
#include "daemon/control/rendezvous/formation_reports.h"
#include "daemon/control/rendezvous/group_table.h"
#include "daemon/control/rendezvous/takeover.h"

namespace epd {

class Placement {
 public:
  Placement(Incarnation coordinator, ClaimTable& claims, GroupTable& groups, Takeover& takeover,
            FormationReports& reports)
      : coordinator_(coordinator),
        claims_(claims),
        groups_(groups),
        takeover_(takeover),
        reports_(reports) {}

  // Places every claim that waits for a group of this name, in order of arrival: it is granted, goes
  // on waiting, or fails, perhaps with the group that it does not agree with.
  void PlaceWaiting(const std::string& name);

 private:
  void Place(const ClaimKey& key);
  void PlaceIntoNew(const ClaimKey& key);
  void PlaceIntoForming(ClusterGroup& group, const ClaimKey& key);
  void PlaceIntoFormed(ClusterGroup& group, const ClaimKey& key);
  // Tells the group of a claim for ranks that its members hold; once per process and rank.
  void NoteRival(ClusterGroup& group, const ClaimKey& key, bool waits);

  Incarnation coordinator_;
  ClaimTable& claims_;
  GroupTable& groups_;
  Takeover& takeover_;
  FormationReports& reports_;
};

}  // namespace epd
