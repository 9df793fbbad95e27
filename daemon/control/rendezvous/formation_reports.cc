#include "daemon/control/rendezvous/formation_reports.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"

namespace epd {
namespace {

// Of names whose formations were late; an operator looks at the last ones.
constexpr size_t kMaxReports = 256;
constexpr size_t kMaxStale = 8192;
constexpr const char* kWorkerDown = "worker_down";

}  // namespace

std::vector<RankPhase> FormationReports::Holders(const ClusterGroup& group,
                                                 const std::vector<Rank>& ranks) const {
  std::vector<RankPhase> out;
  for (const auto& [rank, key] : group.ranks.holders) {
    if (!ranks.empty() && !absl::c_linear_search(ranks, rank)) continue;
    out.push_back({claims_.Holder(key, rank), Phase(group, rank),
                   changes_.now() - nodes_.At(key.node).last_seen});
  }
  return out;
}

std::string FormationReports::Phase(const ClusterGroup& group, Rank rank) const {
  const ClaimKey& key = group.ranks.holders.at(rank);
  const KnownClaim& known = claims_.At(key);
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
  const WorkerId worker = claims_.Worker(key, rank);
  if (!nodes_.Worker(worker).incarnation) return kWorkerDown;
  const ClusterCommunicator& communicator = groups_.Communicator(group);
  if (!communicator.initialised) {
    const GroupWork* shared = nodes_.Work(worker, communicator.id);
    return shared != nullptr && shared->init_epoch == communicator.epoch ? "initialised"
                                                                         : "communicator";
  }
  const GroupWork* work = nodes_.Work(worker, group.id);
  if (!group.started) return "drained";
  return work != nullptr && work->formation == group.formation && work->phase == TenantPhase::kReady
             ? "ready"
             : "arena";
}

absl::Status FormationReports::Late(const ClusterGroup& group, absl::Duration allowed) {
  FormationReport late;
  late.name = group.spec.name;
  late.title = Title(group.spec);
  late.epoch = group.epoch;
  late.state = group.state;
  late.allowed = allowed;
  late.cause = group.cause;
  late.arrived = Holders(group);
  late.missing = group.missing();
  for (const RankPhase& rank : late.arrived) {
    if (rank.phase != kWorkerDown) continue;
    const WorkerId worker = rank.holder.server();
    late.down[worker] = nodes_.Worker(worker).down_because;
  }
  for (const auto& [rank, former] : group.ranks.dead)
    late.dead.push_back({former.who, "gone", changes_.now() - former.left_at});
  AddWrong(group, late);
  absl::Status error = FormationLateError(late);
  if (reports_.size() >= kMaxReports && reports_.count(late.name) == 0)
    reports_.erase(reports_.begin());
  reports_[late.name] = std::move(late);
  return error;
}

// Who waits beside the group, or was turned away while it formed.
void FormationReports::AddWrong(const ClusterGroup& group, FormationReport& late) const {
  for (const ClaimKey& key : claims_.WaitingFor(group.spec.name)) {
    const Claim& claim = claims_.At(key).claim;
    if (claim.spec.tenant != group.spec.tenant) continue;
    std::string what;
    for (const FieldDifference& d : Differences(claim.spec, group.spec)) {
      absl::StrAppend(&what, what.empty() ? "" : ",", d.field, "=", d.got);
    }
    for (const Rank rank : claim.ranks) {
      late.wrong.push_back({claims_.Holder(key, rank),
                            what.empty() ? "waiting" : absl::StrCat("brought_", what),
                            changes_.now() - nodes_.At(key.node).last_seen});
    }
  }
  const auto stale = stale_.find(group.spec.name);
  if (stale == stale_.end()) return;
  for (const auto& [rank, at] : stale->second)
    late.wrong.push_back({rank, "old_epoch", changes_.now() - at});
}

void FormationReports::RememberStale(const ClaimKey& key) {
  const Claim& claim = claims_.At(key).claim;
  auto& known = stale_[claim.spec.name];
  for (const Rank rank : claim.ranks) {
    if (known.size() < kMaxStale) known.push_back({claims_.Holder(key, rank), changes_.now()});
  }
  if (stale_.size() > kMaxReports) stale_.erase(stale_.begin());
}

const FormationReport* FormationReports::Last(const std::string& name) const {
  const auto it = reports_.find(name);
  return it == reports_.end() ? nullptr : &it->second;
}

}  // namespace epd
