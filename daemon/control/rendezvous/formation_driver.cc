#include "daemon/control/rendezvous/formation_driver.h"

#include <iterator>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "daemon/control/cut_off.h"

namespace epd {
namespace {

constexpr absl::Duration kSoonBroken = absl::Seconds(10);
constexpr absl::Duration kMinRest = absl::Milliseconds(50);
constexpr absl::Duration kMaxRest = absl::Seconds(5);

}  // namespace

void FormationDriver::Advance(ClusterGroup& group) {
  if (groups_.Communicator(group).epoch) CheckWorkers(group);
  if (group.ranks.holders.empty()) {
    if (!group.orchestrated) return groups_.End(group, GroupEvent::kFail, group.cause);
    if (group.state != GroupState::kForming && group.state != GroupState::kDraining)
      return groups_.Reset(group, group.cause);
  }
  switch (group.state) {
    case GroupState::kForming:
      if (!group.complete() || takeover_.InGrace()) return;
      groups_.Fire(group, GroupEvent::kComplete, absl::OkStatus());
      return Form(group);
    case GroupState::kDegraded:
      if (!group.complete()) return;
      group.deadline = changes_.now() + group.spec.deadlines.form;
      groups_.Fire(group, GroupEvent::kComplete, group.cause);
      return Form(group);
    case GroupState::kBootstrapping:
    case GroupState::kReforming:
      if (group.complete() && !takeover_.InGrace() && changes_.now() >= group.rest.until)
        Form(group);
      return;
    case GroupState::kReady:
      return AdvanceReady(group);
    case GroupState::kDraining:
      return AdvanceDraining(group);
    case GroupState::kClosed:
    case GroupState::kCount:
      return;
  }
}

void FormationDriver::CheckWorkers(ClusterGroup& group) {
  ClusterCommunicator& communicator = groups_.Communicator(group);
  const std::string lost = epochs_.LostWorkers(group);
  const bool active = !group.ranks.holders.empty() &&
                      (group.state == GroupState::kBootstrapping ||
                       group.state == GroupState::kReady || group.state == GroupState::kReforming);
  const bool behind = group.epoch < communicator.epoch;
  if (!lost.empty() && (!active || behind)) communicator.stale = true;
  if (!active || (lost.empty() && !behind) || !group.epoch) return;
  const absl::Status cause = behind ? communicator.over
                                    : WorkerGone(absl::StrCat(Label(group), ": ", lost),
                                                 "its node says that it has ended");
  groups_.EndFormation(group, cause);
  if (!behind) epochs_.Begin(group, cause);
  group.epoch = communicator.epoch;
  if (group.state == GroupState::kReady)
    group.deadline = changes_.now() + group.spec.deadlines.form;
  groups_.Fire(group, GroupEvent::kWorkerLost, cause);
}

void FormationDriver::Form(ClusterGroup& group) {
  if (takeover_.Adopt(group) || takeover_.adopting()) return;  // What serves comes first.
  if (group.started && group.state == GroupState::kReforming && Recounted(group)) {
    if (!Recut(group)) return;
    groups_.EndFormation(group, group.cut.cause);
    groups_.Fire(group, GroupEvent::kRecount, group.cause);
  }
  if (!SetUp(group)) return;
  if (!group.started) {
    if (const absl::Status bases = takeover_.RecoverBases(group); !bases.ok())
      return groups_.End(group, GroupEvent::kFail, bases);
    if (!Start(group)) return;
  }
  const absl::StatusOr<bool> served = Served(group);
  if (!served.ok()) return groups_.End(group, GroupEvent::kFail, served.status());
  if (!*served) return;
  for (const ClaimKey& key : group.ranks.members()) claims_.MarkServed(key);
  groups_.Serve(group);
}

bool FormationDriver::SetUp(ClusterGroup& group) {
  if (!group.started) {
    if (const absl::Status entered = epochs_.Enter(group); !entered.ok()) {
      groups_.End(group, GroupEvent::kFail, entered);
      return false;
    }
    if (group.state == GroupState::kReforming && !SessionsDrained(group)) return false;
  }
  if (groups_.Communicator(group).initialised) return true;
  const absl::StatusOr<bool> connected = epochs_.Connect(group);
  if (!connected.ok()) groups_.End(group, GroupEvent::kFail, connected.status());
  return connected.ok() && *connected;
}

bool FormationDriver::SessionsDrained(const ClusterGroup& group) const {
  for (const ClaimKey& key : group.ranks.members()) {
    const KnownClaim& known = claims_.At(key);
    if (!known.since) continue;
    if (!known.claim.drained.has_value() || known.claim.drained->after < group.formation)
      return false;
  }
  return true;
}

bool FormationDriver::Start(ClusterGroup& group) {
  group.cut.drained.clear();
  for (const ClaimKey& key : group.ranks.members()) {
    const Claim& claim = claims_.At(key).claim;
    // Who was never told of a formation has begun nothing that others could be ahead in.
    if (claim.joined && claim.drained.has_value()) group.cut.drained[key] = *claim.drained;
  }
  group.cut.before = group.cut.bases;
  if (!Recut(group)) return false;
  if (group.inherited.formed) group.formation = std::max(group.formation, floors_.formation());
  group.formation = Formation{group.formation.value + 1};
  for (const ClaimKey& key : group.ranks.members()) claims_.Start(key, group.formation);
  group.started = true;
  groups_.Touch(group);
  return true;
}

absl::StatusOr<bool> FormationDriver::Served(ClusterGroup& group) const {
  bool ready = true;
  for (const WorkerId& id : groups_.Derived(group).workers) {
    const GroupWork* work = nodes_.Work(id, group.id);
    if (work == nullptr || work->formation != group.formation) {
      ready = false;
      continue;
    }
    if (work->phase == TenantPhase::kFailed) {
      const std::string& no_id = groups_.Communicator(group).no_id_reason;
      const bool missed = group.spec.on_device() && !no_id.empty();
      return absl::Status(
          work->tenant_status.code(),
          absl::StrCat(Label(group), " phase=", std::string(Name(group.state)), ": ", Named(id),
                       " cannot serve it: ", work->tenant_status.message(),
                       missed ? absl::StrCat("; unique id: ", no_id) : "", " [EPD-1104]"));
    }
    ready = ready && work->phase == TenantPhase::kReady;
  }
  return ready;
}

void FormationDriver::EndIfBroken(ClusterGroup& group) {
  const GroupWork* work = group.state == GroupState::kReady ? BrokenWork(group) : nullptr;
  if (work == nullptr) return;
  // Nodes that cannot reach each other break every formation as soon as it has begun: without a
  // rest the cluster would do nothing else.
  const bool soon = changes_.now() - group.since < kSoonBroken;
  FormationRest& rest = group.rest;
  rest.length = soon ? std::clamp(2 * rest.length, kMinRest, kMaxRest) : absl::ZeroDuration();
  rest.until = changes_.now() + rest.length;
  // Whoever misses a member's stream has aborted the communicator; only an epoch has a new one.
  const bool by_nccl = group.spec.on_device() && groups_.Derived(group).workers.size() > 1;
  if (by_nccl && absl::IsUnavailable(work->broken_cause)) groups_.Communicator(group).stale = true;
  FormAgain(group, work->broken_cause);
}

void FormationDriver::AdvanceReady(ClusterGroup& group) {
  EndIfBroken(group);
  if (group.state == GroupState::kReady && Recounted(group)) {
    if (!Recut(group)) return;
    FormAgain(group, absl::AbortedError(absl::StrCat(
                         Label(group),
                         " phase=re_forming: executions were begun while the group formed again")));
  }
}

bool FormationDriver::Recut(ClusterGroup& group) {
  absl::StatusOr<std::vector<ExecutionBase>> bases = Cut(group);
  if (bases.ok()) {
    group.cut.bases = *std::move(bases);
    return true;
  }
  groups_.End(group, GroupEvent::kFail,
              absl::Status(bases.status().code(),
                           absl::StrCat(Label(group), " phase=", std::string(Name(group.state)),
                                        ": no node can serve it: ", bases.status().message(),
                                        " [EPD-1104]")));
  return false;
}

absl::StatusOr<std::vector<ExecutionBase>> FormationDriver::Cut(const ClusterGroup& group) const {
  std::vector<Rank> staying;
  std::vector<ExecutionCount> counts;
  for (const auto& [key, used] : group.cut.drained) {
    const KnownClaim* known = claims_.Find(key);
    if (known == nullptr) continue;
    const Claim& claim = known->claim;
    const bool late = claim.drained.has_value() && claim.drained->after == used.after;
    const DrainRecord& record = late ? *claim.drained : used;
    staying.insert(staying.end(), claim.ranks.begin(), claim.ranks.end());
    // Each becomes a base.
    absl::c_copy_if(record.counts, std::back_inserter(counts),
                    [](const ExecutionCount& count) { return count.begun > 0; });
    if (absl::Status few = CheckNumBases(counts.size(), staying.size()); !few.ok()) return few;
  }
  return CutOff(counts, group.cut.before, staying);
}

bool FormationDriver::Recounted(const ClusterGroup& group) const {
  for (const auto& [key, used] : group.cut.drained) {
    const KnownClaim* known = claims_.Find(key);
    if (known == nullptr || !known->claim.drained.has_value()) continue;
    if (known->claim.drained->after == used.after && *known->claim.drained != used) return true;
  }
  return false;
}

const GroupWork* FormationDriver::BrokenWork(ClusterGroup& group) const {
  if (!group.started) return nullptr;
  for (const WorkerId& id : groups_.Derived(group).workers) {
    const GroupWork* work = nodes_.Work(id, group.id);
    if (work != nullptr && work->broken == group.formation) return work;
  }
  return nullptr;
}

void FormationDriver::FormAgain(ClusterGroup& group, const absl::Status& why) {
  groups_.EndFormation(group, why);
  group.deadline = changes_.now() + group.spec.deadlines.form;
  groups_.Fire(group, GroupEvent::kRecount, group.cause);
}

void FormationDriver::AdvanceDraining(ClusterGroup& group) {
  for (const WorkerId& id : groups_.Derived(group).workers) {
    const GroupWork* work = nodes_.Work(id, group.id);
    if (work == nullptr) return;
    const GroupWork* shared = nodes_.Work(id, groups_.Communicator(group).id);
    // Its worker has died, and with it what was open.
    if (shared != nullptr && shared->fenced >= group.epoch) continue;
    if (work->formation != group.formation || work->phase != TenantPhase::kDrained) return;
  }
  groups_.EndDrained(group, absl::OkStatus());
}

}  // namespace epd
