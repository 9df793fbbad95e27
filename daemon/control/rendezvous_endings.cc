// How a group loses a rank, a formation or its life.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/control/rendezvous_impl.h"
#include "daemon/core/check.h"

namespace epd {

namespace {

constexpr size_t kMaxRememberedNames = 4096;

}  // namespace

void Rendezvous::Impl::AdvanceDraining(ClusterGroup& group) {
  for (const NodeId& id : NodesOf(group)) {
    const GroupWork* work = WorkOf(id, group.id);
    if (work == nullptr) return;
    if (work->fenced >= group.epoch) continue;  // Its worker has died, and with it what was open.
    if (work->formation != group.formation || work->phase != TenantPhase::kDrained) return;
  }
  FinishOrdersOf(group.id, absl::OkStatus());
  End(group, GroupEvent::kClose,
      absl::FailedPreconditionError(
          absl::StrCat("group=", group.spec.name, " epoch=", group.epoch.value,
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
  effects_.push_back(GroupTransition{group.id, group.spec.name, group.epoch, group.formation,
                                     group.state, *next, event, why});
  if (group.state != *next) group.since = now_;
  group.state = *next;
  Touch(group);
}

void Rendezvous::Impl::End(ClusterGroup& group, GroupEvent event, const absl::Status& status) {
  const absl::Status error = status.ok()
                                 ? absl::UnavailableError(absl::StrCat("group=", group.spec.name,
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
  floor = std::max(floor, group.epoch);
  if (floors_.size() > kMaxRememberedNames) {
    for (const auto& [closed, epoch] : floors_) global_floor_ = std::max(global_floor_, epoch);
    floors_.clear();
  }
  by_name_.erase(name);
  dirty_groups_.erase(group.id);
  groups_.erase(group.id);
}

void Rendezvous::Impl::Reset(ClusterGroup& group, const absl::Status& why) {
  EndFormation(group, why);
  group.holders.clear();
  group.dead.clear();
  group.bases.clear();
  group.cut_used.clear();
  group.deadline = absl::InfiniteFuture();
  group.no_replacement = false;
  group.recovered = false;
  group.epoch_stale = true;
  group.epoch_nodes.clear();
  group.epoch_workers.clear();
  group.id_known = false;
  group.initialised = false;
  group.unique_id = UniqueId();
  group.id_digest.clear();
  Fire(group, GroupEvent::kEmptied, why);
}

}  // namespace epd
