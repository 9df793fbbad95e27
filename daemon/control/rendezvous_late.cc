// What the coordinator says of a group that is late: who is how far, who is missing.
#include "absl/strings/str_cat.h"
#include "daemon/control/rendezvous_impl.h"

namespace epd {
namespace {

// Of names whose formations were late; an operator looks at the last ones.
constexpr size_t kMaxReports = 256;
constexpr size_t kMaxStale = 8192;

}  // namespace

std::string Rendezvous::Impl::PhaseOf(const ClusterGroup& group, Rank rank) const {
  const ClaimKey& key = group.holders.at(rank);
  const KnownClaim& known = *Find(key);
  switch (group.state) {
    case GroupState::kForming:
      return "arrived";
    case GroupState::kReady:
      return "ready";
    case GroupState::kDraining:
      return "draining";
    case GroupState::kBootstrapping:
    case GroupState::kDegraded:
    case GroupState::kReforming:
      break;
    case GroupState::kClosed:
    case GroupState::kCount:
      return "closed";
  }
  const bool drained =
      !known.since || group.started ||
      (known.claim.drained.has_value() && known.claim.drained->after >= group.formation);
  if (!drained) return "not_drained";
  if (group.state == GroupState::kDegraded) return "drained";
  const WorkerId worker{key.node, WorkerOf(key, rank)};
  if (!ReportOf(worker).incarnation) return "worker_down";
  const ClusterCommunicator& communicator = CommunicatorOf(group);
  if (!communicator.initialised) {
    const GroupWork* shared = WorkOf(worker, communicator.id);
    return shared != nullptr && shared->init_epoch == communicator.epoch ? "initialised"
                                                                         : "communicator";
  }
  const GroupWork* work = WorkOf(worker, group.id);
  if (!group.started) return "drained";
  return work != nullptr && work->formation == group.formation && work->phase == TenantPhase::kReady
             ? "ready"
             : "arena";
}

absl::Status Rendezvous::Impl::LateError(const ClusterGroup& group, absl::Duration allowed) {
  FormationReport late;
  late.name = group.spec.name;
  late.title = Title(group.spec);
  late.epoch = group.epoch;
  late.state = group.state;
  late.allowed = allowed;
  late.cause = group.cause;
  late.arrived = HoldersOf(group, {});
  for (uint32_t r = 0; r < group.spec.num_ranks; ++r) {
    if (group.holders.count(Rank{r}) == 0) late.missing.push_back(Rank{r});
  }
  for (const auto& [rank, holder] : group.dead) {
    const auto left = group.left_at.find(rank);
    const absl::Time at = left == group.left_at.end() ? now_ : left->second;
    late.dead.push_back({holder, "gone", now_ - at});
  }
  AddWrong(group, late);
  absl::Status error = FormationLateError(late);
  if (reports_.size() >= kMaxReports && reports_.count(late.name) == 0)
    reports_.erase(reports_.begin());
  reports_[late.name] = std::move(late);
  return error;
}

// Who waits beside the group, or was turned away while it formed.
void Rendezvous::Impl::AddWrong(const ClusterGroup& group, FormationReport& late) const {
  const auto waiting = waiting_.find(group.spec.name);
  if (waiting != waiting_.end()) {
    for (const auto& [arrival, key] : waiting->second) {
      const Claim& claim = Find(key)->claim;
      if (claim.spec.tenant != group.spec.tenant) continue;
      std::string what;
      for (const FieldDifference& d : Differences(claim.spec, group.spec)) {
        absl::StrAppend(&what, what.empty() ? "" : ",", d.field, "=", d.got);
      }
      for (const Rank rank : claim.ranks) {
        late.wrong.push_back({PlacementOf(key, rank),
                              what.empty() ? "waiting" : absl::StrCat("brought_", what),
                              now_ - NodeOf(key.node)->last_seen});
      }
    }
  }
  const auto stale = stale_.find(group.spec.name);
  if (stale == stale_.end()) return;
  for (const auto& [rank, at] : stale->second) late.wrong.push_back({rank, "old_epoch", now_ - at});
}

void Rendezvous::Impl::RememberStale(const ClaimKey& key) {
  const Claim& claim = Find(key)->claim;
  auto& known = stale_[claim.spec.name];
  for (const Rank rank : claim.ranks) {
    if (known.size() < kMaxStale) known.push_back({PlacementOf(key, rank), now_});
  }
  if (stale_.size() > kMaxReports) stale_.erase(stale_.begin());
}

const FormationReport* Rendezvous::Impl::LastReport(const std::string& name) const {
  const auto it = reports_.find(name);
  return it == reports_.end() ? nullptr : &it->second;
}

}  // namespace epd
