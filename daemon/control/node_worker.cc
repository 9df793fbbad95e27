// The workers' lives and their answers.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/control/node_impl.h"
#include "daemon/core/check.h"

namespace epd {

void NodeControl::Impl::On(const WorkerAdded& event) {
  const auto [worker, added] = workers_.try_emplace(event.name);
  if (!added) return;
  worker->second.name = event.name;
  dirty_ = true;
}

void NodeControl::Impl::On(const WorkerStarted& event) {
  WorkerStatus& worker = workers_.at(event.name);
  const auto next = kWorkerTransitions.Next(worker.state, WorkerEvent::kStarted);
  EPD_CHECK(next.has_value());
  worker.state = *next;
  worker.incarnation = event.worker;
  worker.has_nccl = event.has_nccl;
  worker.nccl_problem = event.nccl_problem;
  worker.nccl_version = event.nccl_version;
  worker.wire_address = event.wire_address;
  worker.local_address = event.local_address;
  dirty_ = true;
}

void NodeControl::Impl::On(const WorkerDied& event) {
  WorkerStatus& worker = workers_.at(event.name);
  if (event.worker && event.worker != worker.incarnation) return;
  worker.last_death = event.cause;
  ++worker.num_deaths;
  if (worker.state == WorkerState::kDown) return;  // A start that failed.
  worker.state = *kWorkerTransitions.Next(worker.state, WorkerEvent::kDied);
  worker.incarnation = Incarnation{};
  dirty_ = true;
  ForgetWork(event.name);
  for (auto& [id, group] : groups_) {
    if (communicators_.at(group.view.communicator).members.count(event.name) == 0) continue;
    if (group.view.state == GroupState::kDraining) continue;
    const absl::Status cause = absl::AbortedError(
        absl::StrCat("group=", Title(group.view.spec), " epoch=", group.view.epoch.value, ": the ",
                     ToString(event.name), " worker of node ", options_.node.value, " has died (",
                     event.cause.message(),
                     "); it is being replaced, calls made from now on wait for the new epoch"));
    EndLocalTenants(group, cause);  // Its other workers cannot go on without it.
    for (Membership* member : MembersOf(id)) {
      if (member->state == MembershipState::kJoined) TellReform(*member, cause, /*wait=*/true);
    }
  }
}

// What it had begun is over; it is not begun again in the same epoch.
void NodeControl::Impl::ForgetWork(const WorkerName& dead) {
  for (auto& [id, communicator] : communicators_) {
    const auto found = communicator.members.find(dead);
    if (found == communicator.members.end()) continue;
    LocalMember& member = found->second;
    const Epoch fenced = std::max({member.work.fenced, member.id_asked, member.init_asked});
    member = LocalMember{};
    member.work.group = id;
    member.work.worker = dead;
    member.work.fenced = fenced;
  }
  for (auto& [id, group] : groups_) {
    const auto found = group.tenants.find(dead);
    if (found == group.tenants.end()) continue;
    LocalTenant& tenant = found->second;
    if (tenant.running) {
      Epoch& fenced = communicators_.at(group.view.communicator).members[dead].work.fenced;
      fenced = std::max(fenced, group.view.epoch);
      // What is open on the others fails by itself, and so they drain.
      if (group.view.state != GroupState::kDraining)
        group.ended = std::max(group.ended, tenant.work.formation);
    }
    const Formation formation = tenant.work.formation;
    tenant = LocalTenant{};
    tenant.work.group = id;
    tenant.work.worker = dead;
    tenant.work.communicator = group.view.communicator;
    tenant.work.formation = formation;
  }
}

bool NodeControl::Impl::IsUp(const WorkerName& name) const {
  const auto worker = workers_.find(name);
  return worker != workers_.end() && worker->second.state == WorkerState::kUp;
}

bool NodeControl::Impl::IsRun(const WorkerName& name, Incarnation worker) const {
  return IsUp(name) && workers_.at(name).incarnation == worker;
}

NodeControl::Impl::LocalTenant* NodeControl::Impl::Answering(Incarnation worker, GroupId group,
                                                             Formation formation) {
  const auto it = groups_.find(group);
  if (it == groups_.end()) return nullptr;
  for (auto& [name, tenant] : it->second.tenants) {
    if (IsRun(name, worker))
      return tenant.running && tenant.work.formation == formation ? &tenant : nullptr;
  }
  return nullptr;
}

NodeControl::Impl::LocalMember* NodeControl::Impl::AnsweringFor(Incarnation worker,
                                                                GroupId communicator) {
  const auto it = communicators_.find(communicator);
  if (it == communicators_.end()) return nullptr;
  for (auto& [name, member] : it->second.members) {
    if (IsRun(name, worker)) return &member;
  }
  return nullptr;
}

void NodeControl::Impl::On(const TenantReady& event) {
  LocalTenant* tenant = Answering(event.worker, event.group, event.formation);
  if (tenant == nullptr || tenant->work.phase != TenantPhase::kStarting) return;
  tenant->work.phase = TenantPhase::kReady;
  dirty_ = true;
}

void NodeControl::Impl::On(const TenantFailed& event) {
  LocalTenant* tenant = Answering(event.worker, event.group, event.formation);
  if (tenant == nullptr || tenant->work.phase != TenantPhase::kStarting) return;
  tenant->work.phase = TenantPhase::kFailed;
  tenant->work.tenant_status = event.status;
  dirty_ = true;
}

void NodeControl::Impl::On(const TenantBroken& event) {
  LocalTenant* tenant = Answering(event.worker, event.group, event.formation);
  if (tenant == nullptr) return;
  tenant->work.broken = event.formation;
  tenant->work.broken_cause = event.cause;
  dirty_ = true;
}

void NodeControl::Impl::On(const TenantDrained& event) {
  LocalTenant* tenant = Answering(event.worker, event.group, event.formation);
  if (tenant == nullptr || !tenant->drain_asked) return;
  tenant->work.phase = TenantPhase::kDrained;
  dirty_ = true;
}

void NodeControl::Impl::On(const UniqueIdMade& event) {
  LocalMember* member = AnsweringFor(event.worker, event.group);
  if (member == nullptr || member->id_asked != event.epoch || member->work.id_epoch == event.epoch)
    return;
  member->work.id_epoch = event.epoch;
  member->work.id_status = event.status;
  member->work.id = event.id;
  dirty_ = true;
}

void NodeControl::Impl::On(const CommunicatorInitialised& event) {
  LocalMember* member = AnsweringFor(event.worker, event.group);
  if (member == nullptr || member->init_asked != event.epoch ||
      member->work.init_epoch == event.epoch)
    return;
  member->work.init_epoch = event.epoch;
  member->work.init_status = event.status;
  member->work.init_sha256 = event.sha256;
  dirty_ = true;
}

void NodeControl::Impl::EndLocalTenants(LocalGroup& group, const absl::Status& status) {
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
    dirty_ = true;
    if (IsUp(name)) Emit(EndTenant{group.view.id, tenant.work.formation, why, name});
  }
}

// Whether every worker of this node that serves the group does so in `formation`.
bool NodeControl::Impl::IsReady(const LocalGroup& group, Formation formation) const {
  return !group.tenants.empty() &&
         std::all_of(group.tenants.begin(), group.tenants.end(), [&](const auto& entry) {
           const LocalTenant& tenant = entry.second;
           return tenant.running && tenant.work.formation == formation &&
                  tenant.work.phase == TenantPhase::kReady;
         });
}

}  // namespace epd
