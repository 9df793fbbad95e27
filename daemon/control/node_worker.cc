// The worker's life and its answers.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/control/node_impl.h"
#include "daemon/core/check.h"

namespace epd {

void NodeControl::Impl::On(const WorkerStarted& event) {
  const auto next = kWorkerTransitions.Next(worker_.state, WorkerEvent::kStarted);
  EPD_CHECK(next.has_value());
  worker_.state = *next;
  worker_.incarnation = event.worker;
  worker_.has_nccl = event.has_nccl;
  worker_.nccl_problem = event.nccl_problem;
  worker_.nccl_version = event.nccl_version;
  worker_.wire_address = event.wire_address;
  dirty_ = true;
}

void NodeControl::Impl::On(const WorkerDied& event) {
  if (event.worker && event.worker != worker_.incarnation) return;
  worker_.last_death = event.cause;
  ++worker_.num_deaths;
  if (worker_.state == WorkerState::kDown) return;  // A start that failed.
  worker_.state = *kWorkerTransitions.Next(worker_.state, WorkerEvent::kDied);
  worker_.incarnation = Incarnation{};
  dirty_ = true;
  for (auto& [id, communicator] : communicators_) {
    const Epoch fenced =
        std::max({communicator.work.fenced, communicator.id_asked, communicator.init_asked});
    const std::string no_id_reason = communicator.no_id_reason;
    communicator = LocalCommunicator{};
    communicator.work.group = id;
    communicator.work.fenced = fenced;
    communicator.no_id_reason = no_id_reason;
  }
  for (auto& [id, group] : groups_) {
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
    if (group.view.state == GroupState::kDraining) continue;
    const absl::Status cause = absl::AbortedError(absl::StrCat(
        "group=", Title(group.view.spec), " epoch=", group.view.epoch.value,
        ": the worker of node ", options_.node.value, " has died (", event.cause.message(),
        "); it is being replaced, calls made from now on wait for the new epoch"));
    for (Membership* member : MembersOf(id)) {
      if (member->state == MembershipState::kJoined) TellReform(*member, cause, /*wait=*/true);
    }
  }
}

// The group that an answer of the worker is for; nothing when it is out of date.
NodeControl::Impl::LocalGroup* NodeControl::Impl::Answering(Incarnation worker, GroupId group) {
  if (worker_.state != WorkerState::kUp || worker != worker_.incarnation) return nullptr;
  const auto it = groups_.find(group);
  return it == groups_.end() ? nullptr : &it->second;
}

NodeControl::Impl::LocalCommunicator* NodeControl::Impl::AnsweringFor(Incarnation worker,
                                                                      GroupId communicator) {
  if (worker_.state != WorkerState::kUp || worker != worker_.incarnation) return nullptr;
  const auto it = communicators_.find(communicator);
  return it == communicators_.end() ? nullptr : &it->second;
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
  if (worker_.state == WorkerState::kUp) {
    Emit(EndTenant{group.view.id, group.work.formation,
                   status.ok() ? absl::UnavailableError(
                                     absl::StrCat("group=", Title(group.view.spec), " has ended"))
                               : status});
  }
}

}  // namespace epd
