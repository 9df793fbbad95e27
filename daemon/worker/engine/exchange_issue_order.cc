// The order in which operations enter a communicator, and who takes part. peers.h.
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/worker/engine/cause_text.h"
#include "daemon/worker/engine/exchange.h"
#include "daemon/worker/engine/leader_protocol.h"
#include "daemon/worker/engine/peer_naming.h"

namespace epd {

void Exchange::RowsPrepared(OperationId id, uint64_t digest, absl::Time now) {
  now_ = now;
  const auto found = operations_.find(id);
  if (found == operations_.end() || found->second->phase != Phase::kMoving) return;
  Operation& operation = *found->second;
  PeerMessage message = About(LeaderStep::kPrepared, operation);
  message.bytes = digest;
  Tell(*operation.tenant, operation.tenant->peers->leader, std::move(message), now);
  FinishEvent(now);
}

void Exchange::OnPrepared(Tenant& tenant, Incarnation from, const PeerMessage& message,
                          absl::Time) {
  Operation* operation = FindByNumber(tenant, message.number);
  if (operation == nullptr || operation->peers.has_place) return;
  if (operation->phase != Phase::kAdmitted && operation->phase != Phase::kMoving) return;
  operation->peers.prepared[from] = message.bytes;
  if (operation->peers.prepared.size() < tenant.peers->nodes.size()) return;
  const auto& [first, digest] = *operation->peers.prepared.begin();
  for (const auto& [worker, other] : operation->peers.prepared) {
    if (other == digest) continue;
    return LeaderFails(tenant, operation->key,
                       absl::DataLossError(absl::StrCat(
                           NameRanks(tenant, RanksOf(*tenant.peers, worker), "publish"),
                           ": their plan has other counts than the plan of ",
                           NameRanks(tenant, RanksOf(*tenant.peers, first), "publish"),
                           ", so one of the two is not of this prepare; prepare again")),
                       false);
  }
  GiveIssuePlace(*operation);
}

void Exchange::GiveIssuePlace(Operation& operation) {
  Tenant& tenant = *operation.tenant;
  PeerMessage message = About(LeaderStep::kIssue, operation);
  message.bytes = next_place_[{tenant.start.communicator, tenant.start.epoch}]++;
  for (uint32_t r = 0; r < operation.parts.size(); ++r) {
    message.said.emplace_back(Rank(r), operation.parts[r].said);
  }
  TellOthers(tenant, message);
  OnIssue(tenant, message);
}

// Also when the operation has failed here in the meantime: the others count on this worker.
void Exchange::OnIssue(Tenant& tenant, const PeerMessage& message) {
  Operation* operation = FindByNumber(tenant, message.number);
  if (operation == nullptr || !operation->moving) return;
  operation->peers.has_place = true;
  TakeTurn turn{.operation = operation->id,
                .set = tenant.set,
                .place = message.bytes,
                .recv_capacity = std::vector<uint64_t>(operation->parts.size())};
  for (const auto& [rank, said] : message.said) {
    if (rank.value < turn.recv_capacity.size()) turn.recv_capacity[rank.value] = said.recv_capacity;
  }
  effects_.push_back(std::move(turn));
}

// Failed operations whose leader has said so before it gave them a turn.
void Exchange::CancelMoves(const Tenant& tenant) {
  if (!tenant.by_communicator()) return;
  for (const auto& [id, operation] : operations_) {
    const bool waits = operation->phase == Phase::kFailed && operation->moving;
    if (operation->tenant != &tenant || !waits || operation->peers.has_place) continue;
    operation->peers.has_place = true;
    effects_.push_back(CancelMove{.operation = id, .set = tenant.set});
  }
}

}  // namespace epd
