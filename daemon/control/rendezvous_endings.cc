// How a group loses a rank, a formation or its life.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/control/rendezvous_impl.h"
#include "daemon/core/check.h"

namespace epd {

namespace {

constexpr size_t kMaxRememberedNames = 4096;

constexpr absl::Duration kSoonBroken = absl::Seconds(10);
constexpr absl::Duration kMinRest = absl::Milliseconds(50);
constexpr absl::Duration kMaxRest = absl::Seconds(5);

}  // namespace

// What a node says about a formation that it cannot go on with.
const GroupWork* Rendezvous::Impl::BrokenWork(ClusterGroup& group) const {
  if (!group.started) return nullptr;
  for (const WorkerId& id : Derived(group).workers) {
    const GroupWork* work = WorkOf(id, group.id);
    if (work != nullptr && work->broken == group.formation) return work;
  }
  return nullptr;
}

void Rendezvous::Impl::FormAgain(ClusterGroup& group, const absl::Status& why) {
  EndFormation(group, why);
  group.deadline = now_ + group.spec.deadlines.form;
  Fire(group, GroupEvent::kRecount, group.cause);
  Touch(groups_.at(group.id));
}

// Nodes that cannot reach each other break every formation as soon as it has begun: without a rest
// the cluster would do nothing else.
void Rendezvous::Impl::RestAfterBreak(ClusterGroup& group) const {
  const bool soon = now_ - group.since < kSoonBroken;
  group.rest = soon ? std::clamp(2 * group.rest, kMinRest, kMaxRest) : absl::ZeroDuration();
  group.again_at = now_ + group.rest;
}

void Rendezvous::Impl::AdvanceDraining(ClusterGroup& group) {
  for (const WorkerId& id : Derived(group).workers) {
    const GroupWork* work = WorkOf(id, group.id);
    if (work == nullptr) return;
    const GroupWork* shared = WorkOf(id, CommunicatorOf(group).id);
    // Its worker has died, and with it what was open.
    if (shared != nullptr && shared->fenced >= group.epoch) continue;
    if (work->formation != group.formation || work->phase != TenantPhase::kDrained) return;
  }
  FinishOrdersOf(group.id, absl::OkStatus());
  End(group, GroupEvent::kClose,
      absl::FailedPreconditionError(
          absl::StrCat("group=", Title(group.spec), " epoch=", group.epoch.value,
                       " was drained and closed by an operator; join again")));
}

void Rendezvous::Impl::LoseRank(ClusterGroup& group, const absl::Status& cause) {
  if (group.state != GroupState::kDegraded || group.cause.ok()) {
    EndFormation(group, cause);
  }
  if (group.state != GroupState::kDraining) group.deadline = absl::InfiniteFuture();
  Fire(group, GroupEvent::kRankLost, cause);
}

void Rendezvous::Impl::EndFormation(ClusterGroup& group, const absl::Status& cause) {
  group.cause = cause;
  group.base_cause = cause;
  if (group.state != GroupState::kDraining) group.started = false;
  Touch(group);
}

void Rendezvous::Impl::Fire(ClusterGroup& group, GroupEvent event, const absl::Status& why) {
  const std::optional<GroupState> next = kGroupTransitions.Next(group.state, event);
  EPD_CHECK(next.has_value());
  effects_.push_back(GroupTransition{group.id, Title(group.spec), group.epoch, group.formation,
                                     group.state, *next, event, why});
  if (group.state != *next) group.since = now_;
  group.state = *next;
  earliest_ = std::min(earliest_, FormingDeadline(group));
  Touch(group);
}

void Rendezvous::Impl::End(ClusterGroup& group, GroupEvent event, const absl::Status& status) {
  const absl::Status error = status.ok()
                                 ? absl::UnavailableError(absl::StrCat("group=", Title(group.spec),
                                                                       ": its last member is gone"))
                                 : status;
  Touch(group);
  const std::set<ClaimKey> members = MembersOf(group);
  if (group.orchestrated && event == GroupEvent::kFail) {
    Reset(group, error);
    for (const ClaimKey& key : members) Fail(key, error);
    return;
  }
  FinishOrdersOf(group.id, absl::OkStatus());
  Fire(group, event, error);
  for (const ClaimKey& key : members) Fail(key, error);
  const std::string name = group.spec.name;
  Epoch& floor = floors_[name];
  floor = std::max(floor, CommunicatorOf(group).epoch);
  if (floors_.size() > kMaxRememberedNames) {
    for (const auto& [closed, epoch] : floors_) global_floor_ = std::max(global_floor_, epoch);
    floors_.clear();
  }
  TouchTenants(group);
  by_name_.erase({name, group.spec.tenant});
  dirty_groups_.erase(group.id);
  groups_.erase(group.id);
  if (TenantsOf(name).empty()) communicators_.erase(name);
}

void Rendezvous::Impl::Reset(ClusterGroup& group, const absl::Status& why) {
  EndFormation(group, why);
  group.holders.clear();
  group.derived.reset();
  group.dead.clear();
  group.bases.clear();
  group.cut_used.clear();
  group.deadline = absl::InfiniteFuture();
  group.no_replacement = false;
  group.recovered = false;
  ClusterCommunicator& communicator = CommunicatorOf(group);
  const auto tenants = TenantsOf(group.spec.name);
  const bool shared = std::any_of(tenants.begin(), tenants.end(), [&](const ClusterGroup* other) {
    return other != &group && other->state != GroupState::kForming;
  });
  if (!shared) {
    const GroupId id = communicator.id;
    const Epoch epoch = communicator.epoch;
    communicator = ClusterCommunicator{};
    communicator.id = id;
    communicator.epoch = epoch;
    communicator.stale = true;
  }
  Fire(group, GroupEvent::kEmptied, why);
}

}  // namespace epd
