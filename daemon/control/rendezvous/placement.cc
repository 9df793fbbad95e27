#include "daemon/control/rendezvous/placement.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "daemon/core/resumable.h"

namespace epd {

void Placement::PlaceWaiting(const std::string& name) {
  for (const ClaimKey& key : claims_.WaitingFor(name)) {
    const KnownClaim* known = claims_.Find(key);
    if (known != nullptr && known->disposition == ClaimDisposition::kWaiting) Place(key);
  }
}

void Placement::Place(const ClaimKey& key) {
  const KnownClaim& known = claims_.At(key);
  const Claim& claim = known.claim;
  if (claim.group && claim.granted_by == coordinator_ && claim.group != known.given_back) {
    reports_.RememberStale(key);
    claims_.Fail(key, absl::AbortedError(absl::StrCat(
                          "group=", Title(claim.spec), " ranks ", DescribeRanks(claim.ranks),
                          ": the coordinator gave this membership up while node ", key.node.value,
                          " was out of reach; join again")));
    return;
  }
  if (claim.group && claim.joined) return takeover_.Recover(key);
  if (takeover_.InGrace())
    return claims_.Wait(key, "the coordinator has just started and listens to the nodes first");
  ClusterGroup* group = groups_.ByName(claim.spec.name, claim.spec.tenant);
  if (group == nullptr) return PlaceIntoNew(key);
  if (group->state == GroupState::kDraining && IsResumable(group->cause)) {
    claims_.Wait(key, absl::StrCat("the group must end first: ", group->cause.message()));
  } else if (group->state == GroupState::kDraining) {
    claims_.Fail(
        key, absl::FailedPreconditionError(absl::StrCat(
                 Label(*group), " phase=draining: takes no new members; join once it is closed")));
  } else if (claim.spec.instance != group->spec.instance) {
    NoteRival(*group, key, /*waits=*/true);
    claims_.Wait(key, absl::StrCat("it is of another run, instance \"", claim.spec.instance,
                                   "\"; that with instance \"", group->spec.instance,
                                   "\" of the group, ", std::string(Name(group->state)),
                                   ", must end first: ", DescribeAll(reports_.Holders(*group)),
                                   "; ", kSeparateJobs));
  } else if (group->state == GroupState::kForming) {
    PlaceIntoForming(*group, key);
  } else {
    PlaceIntoFormed(*group, key);
  }
}

void Placement::NoteRival(ClusterGroup& group, const ClaimKey& key, bool waits) {
  const Claim& claim = claims_.At(key).claim;
  bool fresh = false;
  for (const Rank rank : claim.ranks) {
    if (group.ranks.holders.count(rank) == 0) continue;
    const RivalClaim rival{claims_.Holder(key, rank), waits};
    const auto same = absl::c_find_if(group.rivals, [&](const RivalClaim& known) {
      return known.waits == waits && known.who.rank == rank && known.who.node == key.node &&
             (known.who.pid != 0 ? known.who.pid == claim.pid : known.who.session == key.session);
    });
    if (same != group.rivals.end()) continue;
    group.rivals.push_back(rival);
    if (group.rivals.size() > kMaxRivals) group.rivals.erase(group.rivals.begin());
    fresh = true;
  }
  if (fresh) groups_.Touch(group);
}

void Placement::PlaceIntoNew(const ClaimKey& key) {
  const Claim& claim = claims_.At(key).claim;
  for (const ClusterGroup* other : groups_.Tenants(claim.spec.name)) {
    if (Contract(other->spec) == Contract(claim.spec)) continue;
    const RankHolder who = claims_.Holder(key, claim.ranks.front());
    return claims_.Fail(key, TenantSpecError(who, claim.spec, other->spec));
  }
  const GroupId id = groups_.FreshId(claim.proposed);
  groups_.Grant(groups_.Create(id, claim.spec, /*orchestrated=*/false), key);
}

void Placement::PlaceIntoForming(ClusterGroup& group, const ClaimKey& key) {
  const Claim& claim = claims_.At(key).claim;
  absl::Status error;
  if (claim.spec != group.spec) {
    std::vector<SpecBrought> brought;
    const auto bring = [&](const ClaimKey& who) {
      const Claim& of = claims_.At(who).claim;
      brought.push_back({claims_.Holder(who, of.ranks.front()), of.ranks, of.spec});
    };
    for (const ClaimKey& member : group.ranks.members()) bring(member);
    bring(key);
    error = SpecMismatchError(group.spec, brought);
  }
  for (const Rank rank : claim.ranks) {
    const auto holder = group.ranks.holders.find(rank);
    if (holder == group.ranks.holders.end()) continue;
    error.Update(RankClaimedTwiceError(group.spec, claims_.Holder(holder->second, rank),
                                       claims_.Holder(key, rank)));
  }
  if (error.ok()) return groups_.Grant(group, key);
  claims_.Fail(key, error);
  groups_.End(group, GroupEvent::kFail, error);
}

void Placement::PlaceIntoFormed(ClusterGroup& group, const ClaimKey& key) {
  const Claim& claim = claims_.At(key).claim;
  std::vector<RankPhase> held = reports_.Holders(group, claim.ranks);
  const bool settled =
      group.state == GroupState::kReady || group.state == GroupState::kBootstrapping;
  if (settled) {
    if (held.empty()) held = reports_.Holders(group);  // Another number of ranks.
    NoteRival(group, key, /*waits=*/false);
    claims_.Fail(key,
                 RankHeldError(group.spec, group.epoch, held, Differences(claim.spec, group.spec)));
  } else if (group.ranks.no_replacement) {
    claims_.Wait(key, absl::StrCat("a rank has left, the others must end first: ",
                                   DescribeAll(reports_.Holders(group))));
  } else if (claim.spec != group.spec) {
    claims_.Wait(key, absl::StrCat("the group has another spec, its members must end first: ",
                                   DescribeAll(reports_.Holders(group))));
  } else if (!held.empty()) {
    claims_.Wait(key, absl::StrCat("held by ", DescribeAll(held)));
  } else if (group.started) {
    claims_.Wait(key, "the group is being set up");
  } else {
    groups_.Grant(group, key);
  }
}

}  // namespace epd
