// How the coordinator's parts work together: every input changes the records of nodes and claims,
// then Settle() places waiting claims and advances groups until nothing moves, then every node
// whose view may have changed gets a new one.
#include "daemon/control/rendezvous.h"

#include "absl/strings/str_cat.h"
#include "daemon/control/rendezvous/changes.h"
#include "daemon/control/rendezvous/claim_table.h"
#include "daemon/control/rendezvous/epoch_floors.h"
#include "daemon/control/rendezvous/epoch_setup.h"
#include "daemon/control/rendezvous/formation_driver.h"
#include "daemon/control/rendezvous/formation_reports.h"
#include "daemon/control/rendezvous/group_table.h"
#include "daemon/control/rendezvous/node_table.h"
#include "daemon/control/rendezvous/operator_orders.h"
#include "daemon/control/rendezvous/placement.h"
#include "daemon/control/rendezvous/takeover.h"
#include "daemon/control/rendezvous/view_maker.h"
#include "daemon/core/duration_text.h"

namespace epd {

struct Rendezvous::Parts {
  explicit Parts(const RendezvousOptions& options)
      : incarnation(options.incarnation),
        floors(options.floor),
        nodes(options.incarnation, options.node_silence),
        claims(changes),
        groups(options.incarnation, changes, claims, floors),
        reports(changes, nodes, claims, groups),
        orders(options.keeps_persistent, options.persistent, changes, groups, reports),
        epochs(nodes, claims, groups, floors),
        takeover(options, changes, nodes, claims, groups, epochs, reports),
        formations(changes, nodes, claims, groups, floors, epochs, takeover),
        placement(options.incarnation, claims, groups, takeover, reports),
        views(options.incarnation, nodes, claims, groups, orders, reports) {}

  void Begin(absl::Time now);
  void EndGraceIfDue();
  void Take(const NodeReport& report);
  // Its run, or all of it, is gone.
  void Drop(const NodeId& node, const absl::Status& cause);
  void Lose(const NodeId& node, const absl::Status& cause);
  void ExpireGroups();
  void ExpireClaims();
  void Settle();
  Effects Finish();
  // When there is something to run; before, a Tick only shows that the coordinator is awake.
  absl::Time Due() const;

  Incarnation incarnation;
  Changes changes;
  EpochFloors floors;
  NodeTable nodes;
  ClaimTable claims;
  GroupTable groups;
  FormationReports reports;
  OperatorOrders orders;
  EpochSetup epochs;
  Takeover takeover;
  FormationDriver formations;
  Placement placement;
  ViewMaker views;
};

void Rendezvous::Parts::Begin(absl::Time now) {
  changes.Begin(now);
  nodes.Look(changes.now());
  EndGraceIfDue();
}

void Rendezvous::Parts::EndGraceIfDue() {
  if (takeover.InGrace()) return;
  if (const std::vector<NodeReport> held = takeover.TakeHeld(); !held.empty()) {
    for (const NodeReport& report : held) Take(report);
    takeover.SetAdopting(true);
    Settle();
    takeover.SetAdopting(false);
    for (const auto& [id, group] : groups.all()) changes.MarkGroup(id);
    takeover.ExplainReforming();
  }
  takeover.RestorePersistent();
}

void Rendezvous::Parts::Take(const NodeReport& report) {
  if (report.coordinator != incarnation) floors.Hear(report.max_epoch, report.max_formation);
  nodes.Take(report);
  for (const GroupId id : groups.OfNode(report.node)) {
    formations.EndIfBroken(groups.At(id));
    changes.MarkGroup(id);
  }
  for (const ReleasedClaim& released : claims.Take(report)) {
    groups.Release(released.key, released.fate, released.cause);
    if (released.vanished) claims.Erase(released.key);
  }
  orders.Take(report);
  changes.MarkNode(report.node);
}

void Rendezvous::Parts::Drop(const NodeId& node, const absl::Status& cause) {
  takeover.Forget(node);
  groups.DropNode(node, cause);
  orders.DropNode(node);
}

void Rendezvous::Parts::Lose(const NodeId& node, const absl::Status& cause) {
  Drop(node, cause);
  nodes.Lose(node);
}

void Rendezvous::Parts::ExpireGroups() {
  std::vector<GroupId> late;
  for (const auto& [id, group] : groups.all()) {
    if (groups.Deadline(group) <= changes.now()) late.push_back(id);
  }
  for (const GroupId id : late) {
    ClusterGroup& group = groups.At(id);
    if (group.state == GroupState::kDraining) {
      groups.EndDrained(
          group,
          absl::DeadlineExceededError(absl::StrCat(
              Label(group),
              " phase=draining: operations were still open at the deadline and were cut off")));
    } else {
      groups.End(group, GroupEvent::kFail, reports.Late(group, changes.now() - group.since));
    }
  }
}

void Rendezvous::Parts::ExpireClaims() {
  for (const ClaimKey& key : claims.Expired()) {
    const KnownClaim* known = claims.Find(key);
    if (known == nullptr || known->disposition == ClaimDisposition::kFailed) continue;
    const absl::Duration waited = changes.now() - known->first_seen;
    if (known->disposition == ClaimDisposition::kGranted) {
      // A replacement in a group that forms again: only its own Join is late.
      const absl::Status error = reports.Late(groups.At(known->group), waited);
      groups.Release(key, ClaimFate::kGone, error);
      continue;
    }
    claims.Fail(key, absl::DeadlineExceededError(absl::StrCat(
                         "group=", Title(known->claim.spec), " ranks ",
                         DescribeRanks(known->claim.ranks), " phase=waiting: not admitted after ",
                         InMilliseconds(waited), ": ", known->status.message(),
                         "; end the old members or use another name, and join again")));
  }
}

void Rendezvous::Parts::Settle() {
  for (;;) {
    if (const std::optional<GroupId> id = changes.TakeGroup(); id.has_value()) {
      if (ClusterGroup* group = groups.Find(*id); group != nullptr) formations.Advance(*group);
    } else if (const std::optional<std::string> name = changes.TakeName(); name.has_value()) {
      placement.PlaceWaiting(*name);
    } else {
      break;
    }
  }
  for (const EndedGroup& ended : changes.TakeEnded()) orders.TakeEnded(ended);
}

Rendezvous::Effects Rendezvous::Parts::Finish() {
  Effects out = changes.TakeEffects();
  for (RendezvousEffect& effect : views.Make(changes.TakeNodes())) out.push_back(std::move(effect));
  return out;
}

Rendezvous::Rendezvous(const RendezvousOptions& options)
    : parts_(std::make_unique<Parts>(options)) {}
Rendezvous::~Rendezvous() = default;

Rendezvous::Effects Rendezvous::ConnectNode(absl::Time now, const NodeId& node,
                                            Incarnation incarnation, const NodeLink& link) {
  parts_->Begin(now);
  if (parts_->nodes.Connect(parts_->changes.now(), node, incarnation, link))
    parts_->Drop(node, absl::UnavailableError(absl::StrCat("node ", node.value, " was restarted")));
  parts_->changes.MarkNode(node);
  parts_->Settle();
  return parts_->Finish();
}

Rendezvous::Effects Rendezvous::TakeReport(absl::Time now, const NodeReport& report) {
  return TakeReports(now, absl::MakeConstSpan(&report, 1));
}

Rendezvous::Effects Rendezvous::TakeReports(absl::Time now, absl::Span<const NodeReport> reports) {
  parts_->Begin(now);
  bool current = false;
  for (const NodeReport& report : reports) {
    if (!parts_->nodes.Accept(parts_->changes.now(), report)) continue;
    current = true;
    if (parts_->takeover.InGrace()) {
      parts_->takeover.Hold(report);
      parts_->EndGraceIfDue();
    } else {
      parts_->Take(report);
    }
  }
  if (!current) return {};
  parts_->Settle();
  parts_->takeover.ExplainReforming();
  return parts_->Finish();
}

Rendezvous::Effects Rendezvous::LoseNode(absl::Time now, const NodeId& id,
                                         const absl::Status& cause) {
  parts_->changes.Begin(now);
  const KnownNode* node = parts_->nodes.Find(id);
  if (node == nullptr || node->lost) return {};
  parts_->Lose(id, cause);
  parts_->Settle();
  return parts_->Finish();
}

Rendezvous::Effects Rendezvous::SetKept(absl::Time now, const std::vector<PersistentGroup>& kept) {
  parts_->changes.Begin(now);
  parts_->orders.SetKept(kept);
  return parts_->Finish();
}

Rendezvous::Effects Rendezvous::RefuseToKeep(absl::Time now, const absl::Status& why) {
  parts_->changes.Begin(now);
  parts_->orders.RefuseToKeep(why);
  return parts_->Finish();
}

Rendezvous::Effects Rendezvous::Tick(absl::Time now) {
  parts_->nodes.Look(now);
  if (now < parts_->Due()) return {};
  parts_->Begin(now);
  for (const NodeId& id : parts_->nodes.Silent(parts_->changes.now())) {
    parts_->Lose(
        id, absl::UnavailableError(absl::StrCat("node ", id.value, " was silent for ",
                                                absl::FormatDuration(parts_->nodes.silence()))));
  }
  parts_->orders.Expire();
  parts_->ExpireGroups();  // First, so that their members get the complete lists.
  parts_->ExpireClaims();
  parts_->claims.MarkWaiting();
  for (const auto& [id, group] : parts_->groups.all()) parts_->changes.MarkGroup(id);
  parts_->Settle();
  parts_->claims.Tighten();
  parts_->orders.Tighten();
  return parts_->Finish();
}

// Asked in every turn of the control thread, so it must not look at every rank.
absl::Time Rendezvous::Parts::Due() const {
  absl::Time next = std::min({claims.Earliest(), orders.Earliest(), nodes.NextSilence()});
  for (const auto& [id, group] : groups.all()) {
    next = std::min(next, group.deadline);
    if (group.rest.until > changes.now()) next = std::min(next, group.rest.until);
  }
  if (takeover.InGrace()) next = std::min(next, takeover.grace_end());
  return next;
}

absl::Time Rendezvous::NextDeadline() const {
  return std::min(parts_->Due(), parts_->nodes.NextLook());
}

Incarnation Rendezvous::incarnation() const { return parts_->incarnation; }
std::vector<GroupStatus> Rendezvous::Groups() const { return parts_->views.GroupStatuses(); }
std::vector<GroupSummary> Rendezvous::Summaries() const { return parts_->views.GroupSummaries(); }
std::vector<NodeStatus> Rendezvous::Nodes() const { return parts_->views.NodeStatuses(); }
std::vector<PersistentGroup> Rendezvous::Persistent() const {
  return parts_->takeover.Persistent();
}
const FormationReport* Rendezvous::LastReport(const std::string& name) const {
  return parts_->reports.Last(name);
}
Epoch Rendezvous::max_epoch() const { return parts_->floors.highest(); }

std::vector<std::string> Rendezvous::WaitsWithoutEnd() const {
  std::vector<std::string> out = parts_->orders.WaitsWithoutEnd();
  for (const auto& [key, known] : parts_->claims.all()) {
    if (known.pending() && known.deadline == absl::InfiniteFuture())
      out.push_back(absl::StrCat("join of session ", key.session.value, " on ", key.node.value));
  }
  for (const auto& [id, group] : parts_->groups.all()) {
    const bool bounded = parts_->groups.Deadline(group) < absl::InfiniteFuture();
    const bool rests =
        group.state == GroupState::kReady || group.state == GroupState::kDegraded ||
        (group.state == GroupState::kForming && group.ranks.holders.empty() && group.orchestrated);
    if (!bounded && !rests)
      out.push_back(
          absl::StrCat("group ", Title(group.spec), " in ", std::string(Name(group.state))));
  }
  return out;
}

}  // namespace epd
