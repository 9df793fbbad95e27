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
    group.work.group = theirs.id;
    group.work.communicator = theirs.communicator;
    LocalCommunicator& communicator = communicators_[theirs.communicator];
    communicator.work.group = theirs.communicator;
    communicator.worker = WorkerOf(theirs, communicator.worker);
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
    EndLocalTenant(group, why);
    Emit(Transition{id, Title(group.view.spec), group.view.epoch, group.view.formation,
                    group.view.state, GroupState::kClosed, why});
    groups_.erase(id);
    dirty_ = true;
  }
  ForgetCommunicators();
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
  for (const Placement& place : group.view.members) {
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
  if (!IsUp(communicator.worker) || epoch <= communicator.work.fenced) return;
  if (group.view.id_wanted && communicator.id_asked < epoch) {
    communicator.id_asked = epoch;
    Emit(MakeUniqueId{group.view.communicator, epoch, communicator.worker});
  }
  if (group.view.id_known && communicator.init_asked < epoch) Initialise(group, communicator);
  group.view.unique_id = UniqueId();  // The worker has it; keep it no longer than needed.
}

void NodeControl::Impl::Initialise(LocalGroup& group, LocalCommunicator& communicator) {
  const Epoch epoch = group.view.epoch;
  communicator.init_asked = epoch;
  communicator.work.id = UniqueId();  // The coordinator has it: it is not sent again.
  if (group.view.unique_id.empty() || used_ids_.Use(group.view.unique_id)) {
    Emit(InitCommunicator{followed_, group.view.communicator, epoch, group.view.unique_id,
                          group.view.no_id_reason, communicator.worker});
    return;
  }
  communicator.work.init_epoch = epoch;
  communicator.work.init_status = absl::AbortedError(
      absl::StrCat("node ", options_.node.value, " was given a unique id that it has used before"));
  dirty_ = true;
}

void NodeControl::Impl::EndUnwanted(LocalGroup& group) {
  if (group.running && group.work.formation != Wanted(group))
    EndLocalTenant(group, group.view.cause);
}

WorkerName NodeControl::Impl::WorkerOf(const GroupView& view, const WorkerName& before) {
  if (view.worker.has_value()) return *view.worker;
  if (!view.epoch) return before;
  const std::vector<Membership*> members = MembersOf(view.id);
  return members.empty() ? before : members.front()->claim.worker;
}

void NodeControl::Impl::ReconcileTenant(LocalGroup& group) {
  const Formation wanted = Wanted(group);
  const LocalCommunicator& communicator = communicators_.at(group.view.communicator);
  const GroupWork& shared = communicator.work;
  const bool initialised = shared.init_epoch == group.view.epoch && shared.init_status.ok();
  if (wanted && !group.running && IsUp(communicator.worker) && initialised &&
      LocalMembersLive(group)) {
    group.running = true;
    group.worker = communicator.worker;
    group.drain_asked = false;
    group.work.formation = wanted;
    group.work.phase = TenantPhase::kStarting;
    group.work.tenant_status = absl::OkStatus();
    dirty_ = true;
    Emit(StartTenant{followed_, group.view.id, group.view.epoch, wanted, group.view.spec,
                     group.view.members, group.view.bases, group.view.base_cause,
                     group.view.workers, group.worker, group.view.communicator});
  }
  if (group.running && group.view.state == GroupState::kDraining &&
      group.work.phase == TenantPhase::kReady && !group.drain_asked) {
    group.drain_asked = true;
    Emit(DrainTenant{group.view.id, group.work.formation, group.worker});
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
    const bool serving = view.state == GroupState::kReady && wanted && group.running &&
                         group.work.formation == wanted && group.work.phase == TenantPhase::kReady;
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
  Emit(ReplyJoined{member.claim.session, first ? member.claim.request : RequestId{}, followed_,
                   group.view.id, group.view.epoch, group.view.formation, group.view.spec,
                   group.view.members, group.worker});
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
