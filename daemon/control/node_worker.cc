// The workers' lives and their answers.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/control/node_impl.h"
#include "daemon/core/check.h"

namespace epd {

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
  for (const auto& [id, group] : groups_) {
    if (communicators_.at(group.view.communicator).worker != event.name) continue;
    if (group.view.state == GroupState::kDraining) continue;
    const absl::Status cause = absl::AbortedError(
        absl::StrCat("group=", Title(group.view.spec), " epoch=", group.view.epoch.value, ": the ",
                     ToString(event.name), " worker of node ", options_.node.value, " has died (",
                     event.cause.message(),
                     "); it is being replaced, calls made from now on wait for the new epoch"));
    for (Membership* member : MembersOf(id)) {
      if (member->state == MembershipState::kJoined) TellReform(*member, cause, /*wait=*/true);
    }
  }
}

// What it had begun is over; it is not begun again in the same epoch.
void NodeControl::Impl::ForgetWork(const WorkerName& dead) {
  for (auto& [id, communicator] : communicators_) {
    if (communicator.worker != dead) continue;
    const Epoch fenced =
        std::max({communicator.work.fenced, communicator.id_asked, communicator.init_asked});
    const std::string no_id_reason = communicator.no_id_reason;
    communicator = LocalCommunicator{};
    communicator.work.group = id;
    communicator.work.fenced = fenced;
    communicator.no_id_reason = no_id_reason;
    communicator.worker = dead;
  }
  for (auto& [id, group] : groups_) {
    if (communicators_.at(group.view.communicator).worker != dead) continue;
    if (group.running) {
      Epoch& fenced = communicators_.at(group.view.communicator).work.fenced;
      fenced = std::max(fenced, group.view.epoch);
      group.ended = std::max(group.ended, group.work.formation);
    }
    const Formation formation = group.work.formation;
    group.work = GroupWork{};
    group.work.group = id;
    group.work.communicator = group.view.communicator;
    group.work.formation = formation;
    group.running = false;
    group.drain_asked = false;
  }
}

bool NodeControl::Impl::IsUp(const WorkerName& name) const {
  const auto worker = workers_.find(name);
  return worker != workers_.end() && worker->second.state == WorkerState::kUp;
}

// The group that an answer of the worker is for; nothing when it is out of date.
NodeControl::Impl::LocalGroup* NodeControl::Impl::Answering(Incarnation worker, GroupId group) {
  const auto it = groups_.find(group);
  if (it == groups_.end()) return nullptr;
  const WorkerName& name = it->second.worker;
  return IsUp(name) && workers_.at(name).incarnation == worker ? &it->second : nullptr;
}

NodeControl::Impl::LocalCommunicator* NodeControl::Impl::AnsweringFor(Incarnation worker,
                                                                      GroupId communicator) {
  const auto it = communicators_.find(communicator);
  if (it == communicators_.end()) return nullptr;
  const WorkerName& name = it->second.worker;
  return IsUp(name) && workers_.at(name).incarnation == worker ? &it->second : nullptr;
}

void NodeControl::Impl::On(const TenantReady& event) {
  LocalGroup* group = Answering(event.worker, event.group);
  if (group == nullptr || !group->running || group->work.formation != event.formation) return;
  if (group->work.phase != TenantPhase::kStarting) return;
  group->work.phase = TenantPhase::kReady;
  dirty_ = true;
}

void NodeControl::Impl::On(const TenantFailed& event) {
  LocalGroup* group = Answering(event.worker, event.group);
  if (group == nullptr || !group->running || group->work.formation != event.formation) return;
  if (group->work.phase != TenantPhase::kStarting) return;
  group->work.phase = TenantPhase::kFailed;
  group->work.tenant_status = event.status;
  dirty_ = true;
}

void NodeControl::Impl::On(const TenantBroken& event) {
  LocalGroup* group = Answering(event.worker, event.group);
  if (group == nullptr || !group->running || group->work.formation != event.formation) return;
  group->work.broken = event.formation;
  group->work.broken_cause = event.cause;
  dirty_ = true;
}

void NodeControl::Impl::On(const TenantDrained& event) {
  LocalGroup* group = Answering(event.worker, event.group);
  if (group == nullptr || !group->drain_asked || group->work.formation != event.formation) return;
  group->work.phase = TenantPhase::kDrained;
  dirty_ = true;
}

void NodeControl::Impl::On(const UniqueIdMade& event) {
  LocalCommunicator* shared = AnsweringFor(event.worker, event.group);
  if (shared == nullptr || shared->id_asked != event.epoch || shared->work.id_epoch == event.epoch)
    return;
  shared->work.id_epoch = event.epoch;
  shared->work.id_status = event.status;
  shared->work.id = event.id;
  dirty_ = true;
}

void NodeControl::Impl::On(const CommunicatorInitialised& event) {
  LocalCommunicator* shared = AnsweringFor(event.worker, event.group);
  if (shared == nullptr || shared->init_asked != event.epoch ||
      shared->work.init_epoch == event.epoch)
    return;
  shared->work.init_epoch = event.epoch;
  shared->work.init_status = event.status;
  shared->work.init_sha256 = event.sha256;
  shared->work.id = UniqueId();  // Nobody needs it from here any more.
  dirty_ = true;
}

void NodeControl::Impl::EndLocalTenant(LocalGroup& group, const absl::Status& status) {
  if (!group.running) return;
  group.running = false;
  group.drain_asked = false;
  group.ended = std::max(group.ended, group.work.formation);
  group.work.phase = TenantPhase::kNone;
  dirty_ = true;
  if (IsUp(group.worker)) {
    Emit(EndTenant{group.view.id, group.work.formation,
                   status.ok() ? absl::UnavailableError(
                                     absl::StrCat("group=", Title(group.view.spec), " has ended"))
                               : status,
                   group.worker});
  }
}

}  // namespace epd
