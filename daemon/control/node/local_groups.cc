#include "daemon/control/node/local_groups.h"

#include <tuple>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "daemon/core/resumable.h"

namespace epd {

void LocalGroups::Take(const ClusterView& view) {
  std::map<GroupId, absl::Status> ended;
  for (const auto& [id, group] : groups_) ended[id] = absl::OkStatus();
  for (const GroupView& theirs : view.groups) {
    ended.erase(theirs.id);
    Group& group = groups_[theirs.id];
    const GroupState from = group.view.id ? group.view.state : GroupState::kCount;
    if (from != theirs.state) {
      group.since = outbox_.now();
      outbox_.Add(GroupTransition{theirs.id, Title(theirs.spec), theirs.epoch, theirs.formation,
                                  from, theirs.state, theirs.cause});
    }
    for (const RivalClaim& rival : theirs.rivals) {
      if (!absl::c_linear_search(group.view.rivals, rival))
        outbox_.Add(RankContested{theirs.id, Title(theirs.spec), theirs.epoch, rival});
    }
    TakeView(view.coordinator, theirs, group);
    EndUnserved(group);
    if (LastServed(group) && !theirs.cause.ok()) group.view.cause = FirstCause(group, theirs.cause);
    if (!theirs.started) group.ended = std::max(group.ended, theirs.formation);
    link_.Hear(theirs.epoch, theirs.formation);
  }
  for (auto& [id, why] : ended) {
    for (const ClaimAnswer& answer : view.claims) {
      if (answer.disposition != ClaimDisposition::kFailed) continue;
      if (answer.group == id || memberships_.IsOf({answer.session, answer.request}, id))
        why = answer.status;
    }
    Group& group = groups_.at(id);
    EndTenants(group, why);
    outbox_.Add(GroupTransition{id, Title(group.view.spec), group.view.epoch, group.view.formation,
                                group.view.state, GroupState::kClosed, why});
    groups_.erase(id);
    outbox_.MarkChanged();
  }
  AssignWorkers();
}

void LocalGroups::TakeView(Incarnation coordinator, const GroupView& theirs, Group& group) {
  const GroupView before = std::exchange(group.view, theirs);
  // A coordinator that replaced another one knows of formations only what reports say, and not which were READY unheard.
  group.view.served = std::max(group.view.served, before.served);
  if (!theirs.kept) {
    group.heard_from = coordinator;
    return;
  }
  const bool had = group.heard_from == coordinator && before.started && theirs.started &&
                   before.formation == theirs.formation;
  if (!had) {  // It is told all again once it hears that this node has nothing.
    group.heard_from = Incarnation{};
    outbox_.MarkChanged();
    return;
  }
  group.view.members = before.members;
  group.view.bases = before.bases;
  group.view.workers = before.workers;
}

std::set<std::string_view> LocalGroups::Names() const {
  std::set<std::string_view> names;
  for (const auto& [id, group] : groups_) names.insert(group.view.spec.name);
  return names;
}

const absl::Status& LocalGroups::NoteTrouble(Group& group, const absl::Status& cause) {
  const Formation now = group.view.formation;
  if (group.troubled < now) {
    group.troubled = now;
    group.trouble = cause;
    group.since = outbox_.now();
  }
  // It may be READY without this node's having heard of it: what ended the one before has nothing to do with it.
  return now > LastServed(group) ? group.trouble : FirstCause(group, cause);
}

std::set<WorkerName> LocalGroups::Serving(const GroupView& view) const {
  if (!view.node_workers.empty() || !view.epoch)
    return {view.node_workers.begin(), view.node_workers.end()};
  return memberships_.WorkersOf(view.id);
}

void LocalGroups::AssignWorkers() {
  std::map<GroupId, CommunicatorUse> used;
  for (const auto& [id, group] : groups_) {
    CommunicatorUse& use = used[group.view.communicator];
    use.epoch = std::max(use.epoch, group.view.epoch);
    if (!group.view.no_id_reason.empty()) use.no_id_reason = group.view.no_id_reason;
  }
  for (auto& [id, group] : groups_) {
    const std::set<WorkerName> names = Serving(group.view);
    for (const WorkerName& name : names) {
      GroupWork& work = group.tenants[name].work;
      work.group = id;
      work.worker = name;
      work.communicator = group.view.communicator;
    }
    std::erase_if(group.tenants, [&](const auto& entry) {
      return !entry.second.running && names.count(entry.first) == 0;
    });
    CommunicatorUse& use = used.at(group.view.communicator);
    if (use.epoch != group.view.epoch) continue;
    use.id_stays = group.view.id_stays;
    use.workers.insert(names.begin(), names.end());
  }
  communicators_.Update(used);
}

void LocalGroups::Reconcile() {
  for (auto& [id, group] : groups_) {
    const Formation wanted = Wanted(group);
    const bool unwanted = absl::c_any_of(group.tenants, [&](const auto& entry) {
      return entry.second.running && entry.second.work.formation != wanted;
    });
    if (unwanted) EndTenants(group, group.view.cause);
    communicators_.Advance(group.view);
    ReconcileTenants(group);
    const Formation now_wanted = Wanted(group);
    const bool serving =
        group.view.state == GroupState::kReady && now_wanted && IsServed(group, now_wanted);
    if (serving && std::exchange(group.served, now_wanted) != now_wanted)
      group.first_cause = absl::OkStatus();
    memberships_.Follow(group.view, now_wanted, serving);
  }
}

void LocalGroups::ReconcileTenants(Group& group) {
  const GroupView& view = group.view;
  const Formation wanted = Wanted(group);
  for (auto& [name, tenant] : group.tenants) {
    if (wanted && !tenant.running && workers_.IsUp(name) &&
        communicators_.IsInitialised(view.communicator, name, view.epoch) &&
        LocalMembersLive(group)) {
      tenant.running = true;
      tenant.drain_asked = false;
      tenant.work.formation = wanted;
      tenant.work.phase = TenantPhase::kStarting;
      tenant.work.tenant_status = absl::OkStatus();
      outbox_.MarkChanged();
      outbox_.Add(StartTenant{link_.followed(), view.id, view.epoch, wanted, view.spec,
                              view.members, view.bases, view.base_cause, view.workers, name,
                              view.communicator});
    }
    if (tenant.running && view.state == GroupState::kDraining &&
        tenant.work.phase == TenantPhase::kReady && !tenant.drain_asked) {
      tenant.drain_asked = true;
      memberships_.TellDraining(view.id, view.cause);  // Before anything is refused.
      outbox_.Add(DrainTenant{view.id, tenant.work.formation, name, IsResumable(view.cause)});
    }
    if (tenant.running && tenant.drain_asked) BreakIfReady(group, tenant);
  }
}

// A coordinator that replaced another one knows nothing of the drain, and a tenant that drains takes no call any more.
void LocalGroups::BreakIfReady(Group& group, Tenant& tenant) {
  const GroupView& view = group.view;
  const bool serves = view.state == GroupState::kReady && view.formation == tenant.work.formation;
  if (!serves || tenant.work.broken == view.formation) return;
  tenant.work.broken = view.formation;
  tenant.work.broken_cause = absl::UnavailableError(absl::StrCat(
      "group=", Title(view.spec), " epoch=", view.epoch.value,
      ": it was being drained when the coordinator was replaced; call again: it forms anew"));
  NoteTrouble(group, tenant.work.broken_cause);
  outbox_.MarkChanged();
}

bool LocalGroups::LocalMembersLive(const Group& group) const {
  bool any = false;
  for (const RankHolder& member : group.view.members) {
    if (member.node != node_) continue;
    any = true;
    if (!memberships_.Holds(member.session, group.view.id)) return false;
  }
  return any;
}

Formation LocalGroups::Wanted(const Group& group) {
  return group.view.started && group.view.formation > group.ended ? group.view.formation
                                                                  : Formation{};
}

bool LocalGroups::IsServed(const Group& group, Formation formation) {
  return !group.tenants.empty() && absl::c_all_of(group.tenants, [&](const auto& entry) {
    const Tenant& tenant = entry.second;
    return tenant.running && tenant.work.formation == formation &&
           tenant.work.phase == TenantPhase::kReady;
  });
}

void LocalGroups::Lose(const LostMember& lost) {
  const auto it = groups_.find(lost.group);
  if (it == groups_.end() || it->second.view.state == GroupState::kDraining) return;
  Group& group = it->second;
  group.ended = std::max(group.ended, lost.formation);
  const absl::Status why = NoteTrouble(
      group, absl::UnavailableError(absl::StrCat(
                 "group=", Title(group.view.spec), " epoch=", group.view.epoch.value, ": ",
                 lost.who, " node=", node_.value, lost.left ? " has left" : " is gone",
                 lost.why.ok() ? "" : absl::StrCat(" (", lost.why.message(), ")"),
                 lost.left ? "; finalise and join again" : "; replace it or join again")));
  EndTenants(group, why);
  memberships_.TellReform(lost.group, why, /*wait=*/false);
}

void LocalGroups::LoseWorker(const WorkerDied& event) {
  ForgetWork(event.name);
  for (auto& [id, group] : groups_) {
    if (!communicators_.IsMember(group.view.communicator, event.name)) continue;
    if (group.view.state == GroupState::kDraining) continue;
    const absl::Status cause = NoteTrouble(
        group,
        WorkerGone(
            absl::StrCat("group=", Title(group.view.spec), " epoch=", group.view.epoch.value, ": ",
                         DescribeWorker({node_, event.name}, group.view.members.items())),
            event.cause.message()));
    EndTenants(group, cause);  // Its other workers cannot go on without it.
    memberships_.TellReform(id, cause, /*wait=*/true);
  }
}

// A node that was cut off hears only afterwards that the group has served again.
Formation LocalGroups::LastServed(const Group& group) {
  return std::max(group.served, group.view.served);
}

const absl::Status& LocalGroups::FirstCause(Group& group, const absl::Status& cause) {
  const Formation of = LastServed(group);
  if (group.first_cause.ok() || group.cause_of < of)
    group.first_cause = group.troubled == of ? group.trouble : cause;
  group.cause_of = of;
  return group.first_cause;
}

// For the reason that NoteTrouble gives.
void LocalGroups::EndUnserved(Group& group) {
  const bool any = absl::c_any_of(group.tenants, [&](const auto& entry) {
    const Tenant& tenant = entry.second;
    return tenant.running && tenant.work.formation > LastServed(group) &&
           tenant.work.formation != Wanted(group);
  });
  if (any) EndTenants(group, group.view.cause);
}

// What it had begun is over; it is not begun again in the same epoch.
void LocalGroups::ForgetWork(const WorkerName& dead) {
  communicators_.ForgetWorker(dead);
  for (auto& [id, group] : groups_) {
    const auto found = group.tenants.find(dead);
    if (found == group.tenants.end()) continue;
    Tenant& tenant = found->second;
    if (tenant.running) {
      communicators_.Fence(group.view.communicator, dead, group.view.epoch);
      // What is open on the others fails by itself, and so they drain.
      if (group.view.state != GroupState::kDraining)
        group.ended = std::max(group.ended, tenant.work.formation);
    }
    const Formation formation = tenant.work.formation;
    tenant = Tenant{};
    tenant.work.group = id;
    tenant.work.worker = dead;
    tenant.work.communicator = group.view.communicator;
    tenant.work.formation = formation;
  }
}

void LocalGroups::EndTenants(GroupId group, const absl::Status& status) {
  const auto it = groups_.find(group);
  if (it != groups_.end()) EndTenants(it->second, status);
}

void LocalGroups::EndAllTenants(const absl::Status& status) {
  for (auto& [id, group] : groups_) EndTenants(group, status);
}

void LocalGroups::EndTenants(Group& group, const absl::Status& status) {
  const absl::Status why =
      status.ok()
          ? absl::UnavailableError(absl::StrCat("group=", Title(group.view.spec), " has ended"))
          : status;
  for (auto& [name, tenant] : group.tenants) {
    if (!tenant.running) continue;
    tenant.running = false;
    tenant.drain_asked = false;
    group.ended = std::max(group.ended, tenant.work.formation);
    tenant.work.phase = TenantPhase::kNone;
    outbox_.MarkChanged();
    if (workers_.IsUp(name))
      outbox_.Add(EndTenant{group.view.id, tenant.work.formation, why, name});
  }
}

LocalGroups::Tenant* LocalGroups::Answering(Incarnation worker, GroupId group,
                                            Formation formation) {
  const auto it = groups_.find(group);
  if (it == groups_.end()) return nullptr;
  for (auto& [name, tenant] : it->second.tenants) {
    if (workers_.IsRun(name, worker))
      return tenant.running && tenant.work.formation == formation ? &tenant : nullptr;
  }
  return nullptr;
}

void LocalGroups::TakeReady(const TenantReady& event) {
  if (groups_.count(event.group) == 0) {
    const auto is_its_run = [&](const auto& worker) {
      return workers_.IsRun(worker.first, event.worker);
    };
    if (absl::c_any_of(workers_.all(), is_its_run)) outbox_.Add(ForgetArenas{event.group});
    return;
  }
  Tenant* tenant = Answering(event.worker, event.group, event.formation);
  if (tenant == nullptr || tenant->work.phase != TenantPhase::kStarting) return;
  tenant->work.phase = TenantPhase::kReady;
  outbox_.MarkChanged();
}

void LocalGroups::TakeFailed(const TenantFailed& event) {
  Tenant* tenant = Answering(event.worker, event.group, event.formation);
  if (tenant == nullptr || tenant->work.phase != TenantPhase::kStarting) return;
  tenant->work.phase = TenantPhase::kFailed;
  tenant->work.tenant_status = event.status;
  outbox_.MarkChanged();
}

void LocalGroups::TakeBroken(const TenantBroken& event) {
  Tenant* tenant = Answering(event.worker, event.group, event.formation);
  if (tenant == nullptr) return;
  tenant->work.broken = event.formation;
  tenant->work.broken_cause = event.cause;
  NoteTrouble(groups_.at(event.group), event.cause);
  outbox_.MarkChanged();
}

void LocalGroups::TakeDrained(const TenantDrained& event) {
  Tenant* tenant = Answering(event.worker, event.group, event.formation);
  if (tenant == nullptr || !tenant->drain_asked) return;
  tenant->work.phase = TenantPhase::kDrained;
  outbox_.MarkChanged();
}

std::vector<LocalGroupStatus> LocalGroups::Statuses() const {
  std::vector<LocalGroupStatus> out;
  for (const auto& [id, group] : groups_) {
    LocalGroupStatus status;
    status.view = group.view;
    status.since = group.since;
    if (group.view.state == GroupState::kReady && group.troubled >= group.view.formation)
      status.trouble = group.trouble;
    for (const auto& [name, tenant] : group.tenants) {
      const TenantPhase phase = tenant.running ? tenant.work.phase : TenantPhase::kNone;
      status.tenant = status.workers.empty() ? phase : std::min(status.tenant, phase);
      status.tenant_formation = tenant.work.formation;
      status.workers.push_back(name);
    }
    status.id_digest = communicators_.IdDigest(group.view.communicator, group.view.epoch);
    out.push_back(std::move(status));
  }
  absl::c_sort(out, [](const LocalGroupStatus& a, const LocalGroupStatus& b) {
    return std::tie(a.view.spec.name, a.view.spec.tenant, a.view.id) <
           std::tie(b.view.spec.name, b.view.spec.tenant, b.view.id);
  });
  return out;
}

void LocalGroups::PutInto(NodeReport& report) const {
  for (const auto& [id, group] : groups_) {
    for (const auto& [name, tenant] : group.tenants) {
      report.work.push_back(tenant.work);
      if (group.view.started && group.heard_from == link_.reported_to())
        report.work.back().heard = group.view.formation;
    }
  }
}

}  // namespace epd
