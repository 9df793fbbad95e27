// How a new coordinator takes over a group that serves: as it is, so that nobody notices.
#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "daemon/control/rendezvous_impl.h"

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

// True: every rank's member and worker say the same of one formation and one epoch, and READY.
bool Rendezvous::Impl::Adopt(ClusterGroup& group) {
  const auto& [first_rank, holder] = *group.holders.begin();
  const WorkerId first{holder.node, WorkerOf(holder, first_rank)};
  const GroupWork* sample = WorkOf(first, group.id);
  if (sample == nullptr || !sample->communicator) return false;
  const GroupId id = sample->communicator;
  const GroupWork* shared = WorkOf(first, id);
  if (shared == nullptr || !shared->init_epoch) return false;
  const Formation formation = sample->formation;
  const Epoch epoch = shared->init_epoch;
  const std::string digest = shared->init_sha256;
  for (const auto& [rank, key] : group.holders) {
    const WorkerId worker{key.node, WorkerOf(key, rank)};
    const GroupWork* tenant = WorkOf(worker, group.id);
    const GroupWork* work = WorkOf(worker, id);
    if (!ReportOf(worker).incarnation || !Serves(*Find(key), tenant, work, formation, epoch))
      return false;
    if (tenant->communicator != id || work->init_sha256 != digest) return false;
  }
  ClusterCommunicator& communicator = CommunicatorOf(group);
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
  BindWorkers(group, communicator);
  group.epoch = epoch;
  group.formation = formation;
  group.started = true;
  group.recovered = false;
  group.base_cause = absl::AbortedError(
      absl::StrCat("group=", group.spec.name, ": executions of an earlier formation have ended"));
  for (const ClaimKey& key : MembersOf(group)) {
    const Claim& claim = Find(key)->claim;
    group.bases.insert(group.bases.end(), claim.bases.begin(), claim.bases.end());
  }
  group.deadline = absl::InfiniteFuture();
  group.cause = absl::OkStatus();
  Fire(group, GroupEvent::kServing, absl::OkStatus());
  return true;
}

// After a coordinator's restart the bases are those that the members' nodes remember; they must be
// of one formation.
bool Rendezvous::Impl::RecoverBases(ClusterGroup& group) {
  if (!group.recovered) return true;
  Formation of;
  group.bases.clear();
  for (const ClaimKey& key : MembersOf(group)) {
    const KnownClaim& known = *Find(key);
    if (!known.since || !known.claim.drained.has_value()) continue;
    if (of && of != known.claim.bases_of) {
      End(group, GroupEvent::kFail,
          absl::AbortedError(
              absl::StrCat("group=", Title(group.spec), " epoch=", group.epoch.value,
                           " phase=re_forming: the coordinator was restarted while the group was ",
                           "forming again; join again")));
      return false;
    }
    of = known.claim.bases_of;
    group.bases.insert(group.bases.end(), known.claim.bases.begin(), known.claim.bases.end());
    group.formation = std::max(group.formation, known.claim.drained->after);
  }
  group.recovered = false;
  return true;
}

}  // namespace epd
