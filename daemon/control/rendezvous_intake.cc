// What nodes report, and what time does.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/control/rendezvous_impl.h"

namespace epd {

Rendezvous::Effects Rendezvous::Impl::OnNodeConnected(absl::Time now, const NodeId& id,
                                                      Incarnation incarnation,
                                                      const NodeLink& link) {
  now_ = std::max(now_, now);
  EndGraceIfDue();
  KnownNode& node = nodes_[id];
  if (node.incarnation != incarnation) {
    held_.erase(id);
    DropNodeClaims(id, absl::UnavailableError(absl::StrCat("node ", id.value, " was restarted")));
    node = KnownNode{};
    node.incarnation = incarnation;
  }
  node.last_seen = now_;
  node.link = link;
  dirty_nodes_.insert(id);
  Settle();
  return Finish();
}

Rendezvous::Effects Rendezvous::Impl::OnReports(absl::Time now,
                                                const std::vector<NodeReport>& reports) {
  now_ = std::max(now_, now);
  EndGraceIfDue();
  bool current = false;
  for (const NodeReport& report : reports) {
    const auto it = nodes_.find(report.node);
    if (it == nodes_.end() || it->second.incarnation != report.incarnation ||
        report.seq <= it->second.last_seq) {
      continue;
    }
    current = true;
    KnownNode& node = it->second;
    node.last_seq = report.seq;
    node.last_seen = now_;
    node.lost = false;
    if (!InGrace()) {
      Take(report);
      continue;
    }
    held_[report.node] = report;
    if (!HaveAllReported()) continue;
    grace_over_ = true;
    EndGraceIfDue();
  }
  if (!current) return {};
  Settle();
  return Finish();
}

bool Rendezvous::Impl::HaveAllReported() const {
  if (options_.expected.empty()) return false;
  return std::all_of(options_.expected.begin(), options_.expected.end(),
                     [this](const NodeId& id) { return held_.count(id) > 0; });
}

void Rendezvous::Impl::EndGraceIfDue() {
  if (InGrace()) return;
  if (!held_.empty()) {
    const std::map<NodeId, NodeReport> held = std::exchange(held_, {});
    for (const auto& [id, report] : held) Take(report);
    adopting_ = true;
    Settle();
    adopting_ = false;
  }
  RestorePersistent();
}

// After the nodes were heard: what they serve has members, and keeps them.
void Rendezvous::Impl::RestorePersistent() {
  for (const PersistentGroup& made : std::exchange(options_.persistent, {})) {
    ClusterGroup* group = ByName(made.spec.name, made.spec.tenant);
    if (group == nullptr) {
      const GroupId id = groups_.count(made.id) == 0 ? made.id : FreshId(made.id);
      Create(id, made.spec, /*orchestrated=*/true).inherited = true;
    } else if (Differences(made.spec, group->spec).empty()) {
      group->orchestrated = true;
    }
  }
}

std::vector<PersistentGroup> Rendezvous::Impl::Persistent() const {
  // Not restored yet: they are still to be.
  std::vector<PersistentGroup> out = options_.persistent;
  for (const auto& [names, id] : by_name_) {
    const ClusterGroup& group = groups_.at(id);
    if (group.orchestrated) out.push_back({id, group.spec});
  }
  return out;
}

void Rendezvous::Impl::Take(const NodeReport& report) {
  KnownNode& node = nodes_.at(report.node);
  node.taken_seq = report.seq;
  if (report.coordinator != options_.incarnation) {
    global_floor_ = std::max(global_floor_, report.max_epoch);
    formation_floor_ = std::max(formation_floor_, report.max_formation);
  }
  node.workers.clear();
  for (const WorkerReport& worker : report.workers) node.workers[worker.name] = worker;
  node.facts = report.facts;
  node.work.clear();
  for (const GroupWork& work : report.work) {
    GroupWork& known = node.work[{work.group, work.worker}] = work;
    if (report.coordinator != options_.incarnation) known.heard = Formation{};
  }
  for (const GroupId id : GroupsOf(report.node)) dirty_groups_.insert(id);
  TakeClaims(report);
  TakeOrders(report);
  dirty_nodes_.insert(report.node);
}

void Rendezvous::Impl::TakeClaims(const NodeReport& report) {
  KnownNode& node = nodes_.at(report.node);
  std::set<std::pair<SessionId, RequestId>> reported;
  const auto key_of = [&](const std::pair<SessionId, RequestId>& id) {
    return ClaimKey{report.node, report.incarnation, id.first, id.second};
  };
  for (const Claim& claim : report.claims) reported.insert({claim.session, claim.request});
  std::vector<ClaimKey> vanished;
  for (const auto& [id, known] : node.claims) {
    if (reported.count(id) == 0) vanished.push_back(key_of(id));
  }
  for (const ClaimKey& key : vanished) {
    Release(key, ClaimFate::kGone, absl::UnavailableError("its node has forgotten the session"));
    node.claims.erase({key.session, key.request});
  }
  for (const Claim& claim : report.claims) {
    const ClaimKey key = key_of({claim.session, claim.request});
    auto [known, fresh] = node.claims.try_emplace({claim.session, claim.request});
    known->second.claim = claim;
    if (fresh) {
      known->second.arrival = next_arrival_++;
      known->second.first_seen = now_;
      known->second.deadline = now_ + claim.remaining;
      earliest_ = std::min(earliest_, known->second.deadline);
      known->second.status = absl::UnavailableError("new");
      if (claim.fate == ClaimFate::kHeld)
        waiting_[claim.spec.name].insert({known->second.arrival, key});
      dirty_names_.insert(claim.spec.name);
    }
    if (claim.fate != ClaimFate::kHeld) Release(key, claim.fate, claim.fate_cause);
  }
}

void Rendezvous::Impl::Release(const ClaimKey& key, ClaimFate fate, const absl::Status& cause) {
  KnownClaim* known = Find(key);
  if (known == nullptr || known->disposition == ClaimDisposition::kFailed) return;
  const bool granted = known->disposition == ClaimDisposition::kGranted;
  const std::string name = known->claim.spec.name;
  if (!granted) {
    Fail(key, cause);
    return;
  }
  ClusterGroup& group = groups_.at(known->group);
  group.derived.reset();
  std::string who;
  for (const Rank rank : known->claim.ranks) {
    const RankHolder holder = PlacementOf(key, rank);
    absl::StrAppend(&who, who.empty() ? "" : "; ",
                    Describe(holder, fate == ClaimFate::kLeft ? "left" : "gone"));
    group.holders.erase(rank);
    group.dead[rank] = holder;
    group.left_at[rank] = now_;
  }
  if (fate == ClaimFate::kLeft && known->served) group.no_replacement = true;
  Fail(key, cause);
  const absl::Status why = absl::UnavailableError(absl::StrCat(
      "group=", Title(known->claim.spec), " epoch=", group.epoch.value, ": ", who,
      fate == ClaimFate::kLeft ? " has left" : " is gone",
      cause.ok() ? "" : absl::StrCat(" (", cause.message(), ")"),
      fate == ClaimFate::kLeft ? "; finalise and join again" : "; replace it or join again"));
  LoseRank(group, why);
}

void Rendezvous::Impl::DropNodeClaims(const NodeId& id, const absl::Status& cause) {
  const auto it = nodes_.find(id);
  if (it == nodes_.end()) return;
  std::vector<ClaimKey> keys;
  for (const auto& [claim, known] : it->second.claims) {
    keys.push_back({id, it->second.incarnation, claim.first, claim.second});
  }
  for (const ClaimKey& key : keys) Release(key, ClaimFate::kGone, cause);
  it->second.claims.clear();
  it->second.work.clear();
  it->second.orders.clear();
  for (auto& [group_id, group] : groups_) {
    ClusterCommunicator& communicator = CommunicatorOf(group);
    if (communicator.WorkersOn(id).empty()) continue;
    communicator.stale = true;
    Touch(group);
  }
}

Rendezvous::Effects Rendezvous::Impl::OnNodeLost(absl::Time now, const NodeId& id,
                                                 const absl::Status& cause) {
  now_ = std::max(now_, now);
  const auto it = nodes_.find(id);
  if (it == nodes_.end() || it->second.lost) return {};
  held_.erase(id);
  DropNodeClaims(id, cause);
  it->second.lost = true;
  it->second.workers.clear();
  Settle();
  return Finish();
}

Rendezvous::Effects Rendezvous::Impl::OnTick(absl::Time now) {
  now_ = std::max(now_, now);
  EndGraceIfDue();
  std::vector<NodeId> silent;
  for (const auto& [id, node] : nodes_) {
    if (!node.lost && node.last_seen + options_.node_silence <= now_) silent.push_back(id);
  }
  for (const NodeId& id : silent) {
    held_.erase(id);
    DropNodeClaims(
        id, absl::UnavailableError(absl::StrCat("node ", id.value, " was silent for ",
                                                absl::FormatDuration(options_.node_silence))));
    nodes_.at(id).lost = true;
    nodes_.at(id).workers.clear();
  }
  Expire();
  for (const auto& [name, keys] : waiting_) dirty_names_.insert(name);
  for (const auto& [id, group] : groups_) dirty_groups_.insert(id);
  Settle();
  earliest_ = EarliestOfAll();
  return Finish();
}

// Ends what is late: groups first, so that their members get the complete lists.
void Rendezvous::Impl::Expire() {
  ExpireOrders();
  std::vector<GroupId> late;
  for (const auto& [id, group] : groups_) {
    if (std::min(group.deadline, FormingDeadline(group)) <= now_) late.push_back(id);
  }
  for (const GroupId id : late) {
    ClusterGroup& group = groups_.at(id);
    if (group.state == GroupState::kDraining) {
      FinishOrdersOf(
          id, absl::DeadlineExceededError(absl::StrCat(
                  "group=", Title(group.spec), " epoch=", group.epoch.value,
                  " phase=draining: operations were still open at the deadline and were cut off")));
      End(group, GroupEvent::kClose,
          absl::FailedPreconditionError(
              absl::StrCat("group=", Title(group.spec), " epoch=", group.epoch.value,
                           " was drained and closed by an operator; join again")));
      continue;
    }
    const absl::Status error = LateError(group, now_ - group.since);
    End(group, GroupEvent::kFail, error);
  }
  std::vector<std::pair<ClaimKey, bool>> expired;
  for (const auto& [id, node] : nodes_) {
    for (const auto& [claim, known] : node.claims) {
      if (known.deadline > now_ || known.served || known.disposition == ClaimDisposition::kFailed)
        continue;
      expired.push_back({{id, node.incarnation, claim.first, claim.second},
                         known.disposition == ClaimDisposition::kGranted});
    }
  }
  for (const auto& [key, granted] : expired) {
    KnownClaim* known = Find(key);
    if (known == nullptr || known->disposition == ClaimDisposition::kFailed) continue;
    if (granted) {  // A replacement in a group that forms again: only its own Join is late.
      const absl::Status error = LateError(groups_.at(known->group), now_ - known->first_seen);
      Release(key, ClaimFate::kGone, error);
      continue;
    }
    Fail(key, absl::DeadlineExceededError(absl::StrCat(
                  "group=", Title(known->claim.spec), " ranks ", DescribeRanks(known->claim.ranks),
                  " phase=waiting: not admitted after ",
                  absl::FormatDuration(now_ - known->first_seen), ": ", known->status.message(),
                  "; end the old members or use another name, and join again")));
  }
}

Rendezvous::Effects Rendezvous::Impl::Finish() {
  for (const NodeId& id : dirty_nodes_) {
    const auto it = nodes_.find(id);
    if (it == nodes_.end()) continue;
    effects_.push_back(SendView{MakeView(id)});
  }
  dirty_nodes_.clear();
  told_.clear();
  Effects out;
  out.swap(effects_);
  return out;
}

absl::Time Rendezvous::Impl::EarliestOfAll() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [id, node] : nodes_) {
    for (const auto& [claim, known] : node.claims) {
      if (!known.served && known.disposition != ClaimDisposition::kFailed)
        next = std::min(next, known.deadline);
    }
    for (const auto& [request, known] : node.orders) {
      if (known.done && !IsKept(known)) next = std::min(next, known.deadline);
    }
  }
  for (const auto& [id, group] : groups_) next = std::min(next, FormingDeadline(group));
  return next;
}

// Asked in every turn of the control thread, so it must not look at every rank.
absl::Time Rendezvous::Impl::NextDeadline() const {
  absl::Time next = earliest_;
  for (const auto& [id, node] : nodes_) {
    if (!node.lost) next = std::min(next, node.last_seen + options_.node_silence);
  }
  for (const auto& [id, group] : groups_) {
    next = std::min(next, group.deadline);
    if (group.again_at > now_) next = std::min(next, group.again_at);
  }
  if (InGrace()) next = std::min(next, options_.started_at + options_.start_grace);
  return next;
}

std::vector<std::string> Rendezvous::Impl::WaitsWithoutEnd() const {
  std::vector<std::string> out;
  for (const auto& [id, node] : nodes_) {
    for (const auto& [claim, known] : node.claims) {
      if (known.served || known.disposition == ClaimDisposition::kFailed) continue;
      if (known.deadline == absl::InfiniteFuture()) {
        out.push_back(absl::StrCat("join of session ", claim.first.value, " on ", id.value));
      }
    }
    for (const auto& [request, order] : node.orders) {
      const bool lives = std::any_of(order.draining.begin(), order.draining.end(),
                                     [&](GroupId group) { return groups_.count(group) > 0; });
      if (!order.done && !lives)
        out.push_back(absl::StrCat("order ", request.value, " of ", id.value));
    }
  }
  for (const auto& [id, group] : groups_) {
    const bool bounded = std::min(group.deadline, FormingDeadline(group)) < absl::InfiniteFuture();
    const bool rests =
        group.state == GroupState::kReady || group.state == GroupState::kDegraded ||
        (group.state == GroupState::kForming && group.holders.empty() && group.orchestrated);
    if (!bounded && !rests) {
      out.push_back(
          absl::StrCat("group ", Title(group.spec), " in ", std::string(Name(group.state))));
    }
  }
  return out;
}

}  // namespace epd
