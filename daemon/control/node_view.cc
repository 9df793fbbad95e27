// What the coordinator says, and how workers and sessions are brought to it.
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/control/node_impl.h"

namespace epd {

void NodeControl::Impl::On(const CoordinatorConnected& event) {
  connected_ = true;
  dirty_ = true;
  if (event.coordinator == followed_) return;
  followed_ = event.coordinator;
  last_view_seq_ = 0;
}

void NodeControl::Impl::On(const CoordinatorLost&) { connected_ = false; }

void NodeControl::Impl::On(const ViewReceived& event) {
  const ClusterView& view = event.view;
  const bool mine = view.node == options_.node && view.node_incarnation == options_.incarnation;
  if (!mine || view.coordinator != followed_ || view.seq <= last_view_seq_) return;
  last_view_seq_ = view.seq;
  if (view.report_seq == 0) return;  // A greeting: it knows nothing of this node yet.
  reported_to_ = view.coordinator;
  for (auto it = members_.begin(); it != members_.end();) {
    const bool seen = it->second.released_seq != 0 && it->second.released_seq <= view.report_seq;
    if (seen) dirty_ = true;  // The coordinator forgets it, too.
    it = seen ? members_.erase(it) : std::next(it);
  }
  TakeGroups(view);
  TakeClaimAnswers(view);
  TakeOrderAnswers(view);
}

void NodeControl::Impl::TakeGroups(const ClusterView& view) {
  std::map<GroupId, absl::Status> ended;
  for (const auto& [id, group] : groups_) ended[id] = absl::OkStatus();
  for (const GroupView& theirs : view.groups) {
    ended.erase(theirs.id);
    LocalGroup& group = groups_[theirs.id];
    const GroupState from = group.view.id ? group.view.state : GroupState::kCount;
    if (from != theirs.state) {
      group.since = now_;
      Emit(Transition{theirs.id, Title(theirs.spec), theirs.epoch, theirs.formation, from,
                      theirs.state, theirs.cause});
    }
    TakeView(view.coordinator, theirs, group);
    LocalCommunicator& communicator = communicators_[theirs.communicator];
    if (!theirs.no_id_reason.empty()) communicator.no_id_reason = theirs.no_id_reason;
    if (!theirs.started) group.ended = std::max(group.ended, theirs.formation);
    max_epoch_ = std::max(max_epoch_, theirs.epoch);
    max_formation_ = std::max(max_formation_, theirs.formation);
  }
  for (auto& [id, why] : ended) {
    for (const ClaimAnswer& answer : view.claims) {
      if (answer.group == id && answer.disposition == ClaimDisposition::kFailed)
        why = answer.status;
    }
    LocalGroup& group = groups_.at(id);
    EndLocalTenants(group, why);
    Emit(Transition{id, Title(group.view.spec), group.view.epoch, group.view.formation,
                    group.view.state, GroupState::kClosed, why});
    groups_.erase(id);
    dirty_ = true;
  }
  ForgetCommunicators();
  TakeWorkers();
}

void NodeControl::Impl::TakeView(Incarnation coordinator, const GroupView& theirs,
                                 LocalGroup& group) {
  const GroupView before = std::exchange(group.view, theirs);
  if (!theirs.kept) {
    group.heard_from = coordinator;
    return;
  }
  const bool had = group.heard_from == coordinator && before.started && theirs.started &&
                   before.formation == theirs.formation;
  if (!had) {  // It is told all again once it hears that this node has nothing.
    group.heard_from = Incarnation{};
    dirty_ = true;
    return;
  }
  group.view.members = before.members;
  group.view.bases = before.bases;
  group.view.workers = before.workers;
}

void NodeControl::Impl::ForgetCommunicators() {
  std::set<GroupId> used;
  for (const auto& [id, group] : groups_) used.insert(group.view.communicator);
  std::erase_if(communicators_, [&](const auto& entry) { return used.count(entry.first) == 0; });
}

void NodeControl::Impl::TakeClaimAnswers(const ClusterView& view) {
  for (const ClaimAnswer& answer : view.claims) {
    const auto it = members_.find({answer.session, answer.request});
    if (it == members_.end() || it->second.state == MembershipState::kReleased) continue;
    Membership& member = it->second;
    switch (answer.disposition) {
      case ClaimDisposition::kWaiting:
        member.waits_for = answer.status;
        break;
      case ClaimDisposition::kGranted:
        member.claim.group = answer.group;
        member.claim.granted_by = view.coordinator;
        member.waits_for = absl::OkStatus();
        break;
      case ClaimDisposition::kFailed:
        FailMember(member, answer.status);
        break;
    }
  }
}

Formation NodeControl::Impl::Wanted(const LocalGroup& group) const {
  return group.view.started && group.view.formation > group.ended ? group.view.formation
                                                                  : Formation{};
}

std::vector<NodeControl::Impl::Membership*> NodeControl::Impl::MembersOf(GroupId group) {
  std::vector<Membership*> out;
  for (auto& [key, member] : members_) {
    if (member.claim.group == group && member.state != MembershipState::kReleased)
      out.push_back(&member);
  }
  return out;
}

bool NodeControl::Impl::LocalMembersLive(const LocalGroup& group) const {
  bool any = false;
  for (const RankHolder& place : group.view.members) {
    if (place.node != options_.node) continue;
    any = true;
    const bool live = std::any_of(members_.begin(), members_.end(), [&](const auto& entry) {
      const Membership& member = entry.second;
      return entry.first.first == place.session && member.claim.group == group.view.id &&
             member.state != MembershipState::kReleased;
    });
    if (!live) return false;
  }
  return any;
}

void NodeControl::Impl::Reconcile() {
  for (auto& [id, group] : groups_) {
    EndUnwanted(group);
    ReconcileWorker(group);
    ReconcileTenant(group);
    ReconcileMembers(group);
  }
}

void NodeControl::Impl::ReconcileWorker(LocalGroup& group) {
  const Epoch epoch = group.view.epoch;
  LocalCommunicator& communicator = communicators_.at(group.view.communicator);
  for (auto& [name, member] : communicator.members) {
    if (!IsUp(name) || epoch <= member.work.fenced) continue;
    if (group.view.id_maker == name && member.id_asked < epoch) {
      member.id_asked = epoch;
      Emit(MakeUniqueId{group.view.communicator, epoch, name});
    }
  }
  if (!group.view.id_known) return;
  const UniqueId id = IdOf(group.view, communicator);
  // Whoever made it has died, and with it the epoch.
  if (group.view.id_stays && id.empty() && group.view.no_id_reason.empty()) return;
  for (auto& [name, member] : communicator.members) {
    if (!IsUp(name) || epoch <= member.work.fenced || member.init_asked >= epoch) continue;
    Initialise(group.view, id, name, communicator);
  }
  const bool all =
      std::all_of(communicator.members.begin(), communicator.members.end(),
                  [epoch](const auto& entry) { return entry.second.init_asked >= epoch; });
  if (!all) return;
  // The workers have it; keep it no longer than needed.
  group.view.unique_id = UniqueId();
  for (auto& [name, member] : communicator.members) member.work.id = UniqueId();
}

// What the coordinator has decided, or what a worker of this node has made for the others of it.
const UniqueId& NodeControl::Impl::IdOf(const GroupView& view,
                                        const LocalCommunicator& communicator) const {
  if (!view.id_stays || !view.no_id_reason.empty()) return view.unique_id;
  for (const auto& [name, member] : communicator.members) {
    if (member.work.id_epoch == view.epoch) return member.work.id;
  }
  return view.unique_id;
}

void NodeControl::Impl::Initialise(const GroupView& view, const UniqueId& id,
                                   const WorkerName& name, LocalCommunicator& communicator) {
  LocalMember& member = communicator.members.at(name);
  member.init_asked = view.epoch;
  if (communicator.id_checked < view.epoch) {
    communicator.id_checked = view.epoch;
    communicator.id_is_fresh = id.empty() || used_ids_.MarkUsed(id);
  }
  if (communicator.id_is_fresh) {
    Emit(InitCommunicator{followed_, view.communicator, view.epoch, id, view.no_id_reason, name});
    return;
  }
  member.work.init_epoch = view.epoch;
  member.work.init_status = absl::AbortedError(
      absl::StrCat("node ", options_.node.value, " was given a unique id that it has used before"));
  dirty_ = true;
}

void NodeControl::Impl::EndUnwanted(LocalGroup& group) {
  const Formation wanted = Wanted(group);
  const bool unwanted =
      std::any_of(group.tenants.begin(), group.tenants.end(), [&](const auto& entry) {
        return entry.second.running && entry.second.work.formation != wanted;
      });
  if (unwanted) EndLocalTenants(group, group.view.cause);
}

std::set<WorkerName> NodeControl::Impl::WorkersOf(const GroupView& view) {
  std::set<WorkerName> out(view.node_workers.begin(), view.node_workers.end());
  if (!out.empty() || !view.epoch) return out;
  for (const Membership* member : MembersOf(view.id)) {
    out.insert(member->claim.workers.begin(), member->claim.workers.end());
  }
  return out;
}

// Who serves what here. A worker that has a tenant still keeps it until that has ended.
void NodeControl::Impl::TakeWorkers() {
  for (auto& [id, communicator] : communicators_) communicator.epoch = Epoch{};
  for (auto& [id, group] : groups_) {
    LocalCommunicator& communicator = communicators_.at(group.view.communicator);
    communicator.epoch = std::max(communicator.epoch, group.view.epoch);
  }
  std::map<GroupId, std::set<WorkerName>> serving;  // By communicator.
  for (auto& [id, group] : groups_) {
    const std::set<WorkerName> names = WorkersOf(group.view);
    for (const WorkerName& name : names) {
      GroupWork& work = group.tenants[name].work;
      work.group = id;
      work.worker = name;
      work.communicator = group.view.communicator;
    }
    std::erase_if(group.tenants, [&](const auto& entry) {
      return !entry.second.running && names.count(entry.first) == 0;
    });
    LocalCommunicator& communicator = communicators_.at(group.view.communicator);
    if (communicator.epoch != group.view.epoch) continue;
    communicator.id_stays = group.view.id_stays;
    serving[group.view.communicator].insert(names.begin(), names.end());
  }
  for (auto& [id, communicator] : communicators_) {
    const std::set<WorkerName>& names = serving[id];
    for (const WorkerName& name : names) {
      communicator.members[name].work.group = id;
      communicator.members[name].work.worker = name;
    }
    std::erase_if(communicator.members,
                  [&](const auto& entry) { return names.count(entry.first) == 0; });
  }
}

void NodeControl::Impl::ReconcileTenant(LocalGroup& group) {
  const Formation wanted = Wanted(group);
  const LocalCommunicator& communicator = communicators_.at(group.view.communicator);
  for (auto& [name, tenant] : group.tenants) {
    const auto member = communicator.members.find(name);
    const bool initialised = member != communicator.members.end() &&
                             member->second.work.init_epoch == group.view.epoch &&
                             member->second.work.init_status.ok();
    if (wanted && !tenant.running && IsUp(name) && initialised && LocalMembersLive(group)) {
      tenant.running = true;
      tenant.drain_asked = false;
      tenant.work.formation = wanted;
      tenant.work.phase = TenantPhase::kStarting;
      tenant.work.tenant_status = absl::OkStatus();
      dirty_ = true;
      Emit(StartTenant{followed_, group.view.id, group.view.epoch, wanted, group.view.spec,
                       group.view.members, group.view.bases, group.view.base_cause,
                       group.view.workers, name, group.view.communicator});
    }
    if (tenant.running && group.view.state == GroupState::kDraining &&
        tenant.work.phase == TenantPhase::kReady && !tenant.drain_asked) {
      tenant.drain_asked = true;
      Emit(DrainTenant{group.view.id, tenant.work.formation, name});
    }
  }
}

void NodeControl::Impl::ReconcileMembers(LocalGroup& group) {
  const GroupView& view = group.view;
  const Formation wanted = Wanted(group);
  for (Membership* member : MembersOf(view.id)) {
    if (view.started && member->claim.bases_of != view.formation) {
      member->claim.bases_of = view.formation;
      member->claim.bases.clear();
      for (const ExecutionBase& base : view.bases) {
        const auto& ranks = member->claim.ranks;
        if (std::find(ranks.begin(), ranks.end(), base.rank) != ranks.end())
          member->claim.bases.push_back(base);
      }
    }
    if (!view.started || wanted > member->claim.joined) {
      const bool told =
          member->state == MembershipState::kNotified || member->state == MembershipState::kDrained;
      if (member->state == MembershipState::kJoined ||
          (told && member->told_to_wait && !view.wait)) {
        TellReform(*member, view.cause, view.wait);
      }
    }
    if (!view.started) AutoDrain(*member, view.formation);
    const bool serving = view.state == GroupState::kReady && wanted && IsReady(group, wanted);
    const bool waits =
        member->state == MembershipState::kWaiting || member->state == MembershipState::kDrained;
    if (serving && waits && member->claim.joined < wanted) TellJoined(*member, group);
  }
}

void NodeControl::Impl::TellReform(Membership& member, const absl::Status& cause, bool wait) {
  Fire(member, MembershipEvent::kReform);
  member.told_to_wait = wait;
  member.deadline = wait ? now_ + member.claim.spec.deadlines.form + options_.coordinator_grace
                         : absl::InfiniteFuture();
  const absl::Status why = cause.ok()
                               ? absl::AbortedError(absl::StrCat("group=", Title(member.claim.spec),
                                                                 " phase=re_forming: forms again"))
                               : cause;
  Emit(NotifyReform{member.claim.session, member.claim.group, member.claim.joined, why, wait});
}

void NodeControl::Impl::TellJoined(Membership& member, const LocalGroup& group) {
  const bool first = member.state == MembershipState::kWaiting;
  Fire(member, MembershipEvent::kServing);
  member.claim.joined = group.view.formation;
  member.deadline = absl::InfiniteFuture();
  member.told_to_wait = false;
  Emit(ReplyJoined{member.claim.session,
                   first ? member.claim.request : RequestId{},
                   followed_,
                   group.view.id,
                   group.view.epoch,
                   group.view.formation,
                   group.view.spec,
                   group.view.members,
                   {member.claim.workers.begin(), member.claim.workers.end()}});
}

// A session that has not been told Joined for a formation has nothing in flight in it.
void NodeControl::Impl::AutoDrain(Membership& member, Formation ended) {
  const bool idle =
      member.state == MembershipState::kWaiting || member.state == MembershipState::kDrained;
  if (!idle || !ended) return;
  if (!member.claim.drained.has_value()) member.claim.drained.emplace();
  if (member.claim.drained->after >= ended) return;
  member.claim.drained->after = ended;
  dirty_ = true;
}

}  // namespace epd
