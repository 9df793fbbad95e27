#include "daemon/control/rendezvous/takeover.h"

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace epd {
namespace {

// Whether a member still is where its formation began: nothing drained, nothing fenced.
bool Serves(const KnownClaim& known, const GroupWork* tenant, const GroupWork* communicator,
            Formation formation, Epoch epoch) {
  const Claim& claim = known.claim;
  const bool drained = claim.drained.has_value() && claim.drained->after >= formation;
  if (tenant == nullptr || communicator == nullptr || drained) return false;
  return claim.joined == formation && claim.bases_of == formation &&
         tenant->formation == formation && tenant->phase == TenantPhase::kReady &&
         communicator->init_epoch == epoch && communicator->init_status.ok() &&
         communicator->fenced < epoch;
}

}  // namespace

void Takeover::Hold(const NodeReport& report) {
  held_[report.node] = report;
  all_reported_ = !expected_.empty() && absl::c_all_of(expected_, [this](const NodeId& id) {
    return held_.count(id) > 0;
  });
}

std::vector<NodeReport> Takeover::TakeHeld() {
  std::vector<NodeReport> out;
  for (auto& [node, report] : std::exchange(held_, {})) out.push_back(std::move(report));
  return out;
}

void Takeover::RestorePersistent() {
  for (const PersistentGroup& made : std::exchange(persistent_, {})) {
    ClusterGroup* group = groups_.ByName(made.spec.name, made.spec.tenant);
    if (group == nullptr) {
      const GroupId id = groups_.Has(made.id) ? groups_.FreshId(made.id) : made.id;
      groups_.Create(id, made.spec, /*orchestrated=*/true).inherited.formed = true;
    } else if (Differences(made.spec, group->spec).empty()) {
      group->orchestrated = true;
    }
  }
}

std::vector<PersistentGroup> Takeover::Persistent() const {
  std::vector<PersistentGroup> out = persistent_;
  for (const auto& [names, id] : groups_.names()) {
    const ClusterGroup& group = groups_.At(id);
    if (group.orchestrated) out.push_back({id, group.spec});
  }
  return out;
}

void Takeover::Recover(const ClaimKey& key) {
  const Claim& claim = claims_.At(key).claim;
  ClusterGroup* group = groups_.ByName(claim.spec.name, claim.spec.tenant);
  const bool restored = group != nullptr && group->orchestrated && !group->inherited.recovered &&
                        group->state == GroupState::kForming && group->ranks.holders.empty() &&
                        group->id == claim.group && group->spec == claim.spec;
  if (group == nullptr || restored) {
    if (group == nullptr) group = &groups_.Create(claim.group, claim.spec, /*orchestrated=*/false);
    group->inherited = {.formed = true, .adoptable = adopting_, .recovered = true};
    group->deadline = changes_.now() + claim.spec.deadlines.form;
    groups_.Fire(*group, GroupEvent::kRecovered,
                 absl::AbortedError(
                     absl::StrCat("group=", Title(claim.spec), ": the coordinator was restarted")));
  }
  const bool fits = group->id == claim.group && group->inherited.recovered &&
                    group->state == GroupState::kReforming && !group->started &&
                    claim.spec == group->spec && reports_.Holders(*group, claim.ranks).empty();
  if (!fits) {
    reports_.RememberStale(key);
    claims_.Fail(key, absl::AbortedError(absl::StrCat("group=", Title(claim.spec),
                                                      " was formed anew after the coordinator ",
                                                      "was restarted; join again")));
    return;
  }
  group->formation = std::max(group->formation, claim.joined);
  group->served = std::max(group->served, claim.joined);
  claims_.Start(key, claim.joined);
  claims_.MarkServed(key);
  groups_.Grant(*group, key);
}

void Takeover::ExplainReforming() {
  for (const auto& [names, id] : groups_.names()) {
    ClusterGroup& group = groups_.At(id);
    if (group.state != GroupState::kReforming || !group.cause.ok()) continue;
    const std::vector<Rank> missing = group.missing();
    groups_.EndFormation(
        group,
        absl::UnavailableError(absl::StrCat(
            Label(group), " phase=re_forming: the coordinator was replaced, and ",
            missing.empty()
                ? std::string("not all ranks were in one formation")
                : absl::StrCat(missing.size() == 1 ? "rank=" : "ranks=", DescribeRanks(missing),
                               " did not report to the new one: the node is gone, or "
                               "cut off"),
            "; call again: the group forms anew when they are back, or when others take their "
            "ranks")));
  }
}

// A node that was cut off may still serve an epoch that a predecessor has left behind for another tenant of the name.
bool Takeover::IsOver(const std::string& name, Epoch epoch) const {
  return absl::c_any_of(claims_.all(), [&](const auto& entry) {
    const Claim& claim = entry.second.claim;
    if (claim.spec.name != name || !claim.joined || claim.ranks.empty()) return false;
    const WorkerId worker = claims_.Worker(entry.first, claim.ranks.front());
    const GroupWork* tenant = nodes_.Work(worker, claim.group);
    const GroupWork* shared =
        tenant == nullptr ? nullptr : nodes_.Work(worker, tenant->communicator);
    return shared != nullptr && shared->init_epoch > epoch;
  });
}

bool Takeover::Adopt(ClusterGroup& group) {
  if (!std::exchange(group.inherited.adoptable, false) || !adopting_) return false;
  const auto& [first_rank, holder] = *group.ranks.holders.begin();
  const WorkerId first = claims_.Worker(holder, first_rank);
  const GroupWork* sample = nodes_.Work(first, group.id);
  if (sample == nullptr || !sample->communicator) return false;
  const GroupId id = sample->communicator;
  const GroupWork* shared = nodes_.Work(first, id);
  if (shared == nullptr || !shared->init_epoch) return false;
  const Formation formation = sample->formation;
  const Epoch epoch = shared->init_epoch;
  const std::string digest = shared->init_sha256;
  if (IsOver(group.spec.name, epoch)) return false;
  for (const auto& [rank, key] : group.ranks.holders) {
    const WorkerId worker = claims_.Worker(key, rank);
    const GroupWork* tenant = nodes_.Work(worker, group.id);
    const GroupWork* work = nodes_.Work(worker, id);
    if (!nodes_.Worker(worker).incarnation ||
        !Serves(claims_.At(key), tenant, work, formation, epoch))
      return false;
    if (tenant->communicator != id || work->init_sha256 != digest) return false;
  }
  ClusterCommunicator& communicator = groups_.Communicator(group);
  // Another tenant of the name may have been taken over, or formed, before this one.
  const bool fresh = !communicator.epoch;
  if (!fresh && (communicator.id != id || communicator.epoch != epoch)) return false;
  communicator.id = id;
  communicator.epoch = epoch;
  communicator.initialised = true;
  communicator.id_known = true;
  communicator.no_id_reason = digest.empty() ? "none: the group was formed without one" : "";
  communicator.id_digest =
      digest.empty() ? communicator.no_id_reason : absl::BytesToHexString(digest);
  epochs_.Bind(group, communicator);
  group.epoch = epoch;
  group.formation = formation;
  group.started = true;
  group.cut.cause = absl::AbortedError(
      absl::StrCat("group=", group.spec.name, ": executions of an earlier formation have ended"));
  for (const ClaimKey& key : group.ranks.members()) {
    const Claim& claim = claims_.At(key).claim;
    group.cut.bases.insert(group.cut.bases.end(), claim.bases.begin(), claim.bases.end());
  }
  groups_.Serve(group);
  return true;
}

absl::Status Takeover::RecoverBases(ClusterGroup& group) const {
  if (!group.inherited.recovered) return absl::OkStatus();
  Formation of;
  group.cut.bases.clear();
  for (const ClaimKey& key : group.ranks.members()) {
    const KnownClaim& known = claims_.At(key);
    if (!known.claim.joined || !known.claim.drained.has_value()) continue;
    if (of && of != known.claim.bases_of) {
      return absl::AbortedError(
          absl::StrCat(Label(group), " phase=re_forming: the coordinator was restarted while the ",
                       "group was forming again; join again"));
    }
    of = known.claim.bases_of;
    group.cut.bases.insert(group.cut.bases.end(), known.claim.bases.begin(),
                           known.claim.bases.end());
    group.formation = std::max(group.formation, known.claim.drained->after);
  }
  group.inherited.recovered = false;
  return absl::OkStatus();
}

}  // namespace epd
