// Operations on several nodes: rows, outcomes, failures. peers.h.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/worker/engine/cause_text.h"
#include "daemon/worker/engine/exchange.h"
#include "daemon/worker/engine/leader_protocol.h"
#include "daemon/worker/engine/peer_naming.h"
#include "proto/epd/v1/region_layout.h"

namespace epd {

void Exchange::SendStage(const Operation& operation, uint32_t rank) {
  const Tenant& tenant = *operation.tenant;
  if (tenant.by_communicator()) return;  // All go together, in their turn.
  SendRows send{.operation = NameOf(operation),
                .set = tenant.set,
                .arena = tenant.arena_of_rank[rank],
                .rank = Rank(rank),
                .offset = operation.region->offset,
                .said = operation.parts[rank].said,
                .destinations = {}};
  if (tenant.worker_executor()) {
    const uint64_t begin = shm::StageOffset(send.said.plan_bytes);
    send.offset += begin;
    send.said.stage_bytes -= begin;
  }
  for (const PeerWorker& node : tenant.peers->nodes) {
    if (node.worker != options_.self) {
      send.destinations[node.worker] = RanksOf(*tenant.peers, node.worker);
    }
  }
  effects_.push_back(std::move(send));
}

void Exchange::CloseWireOf(Operation& operation) {
  if (!std::exchange(operation.peers.wire_open, false)) return;
  if (operation.tenant->by_communicator()) return;
  effects_.push_back(CloseWire{NameOf(operation)});
}

void Exchange::RowsLanded(const PeerOperation& name, Rank rank, absl::Time now) {
  now_ = now;
  Tenant* tenant = FindTenant(name.group, name.formation);
  if (tenant == nullptr || !tenant->peers.has_value()) return;
  Operation* operation = FindByNumber(*tenant, name.number);
  if (operation == nullptr || !operation->peers.wire_open) return;
  operation->peers.landed.insert(rank);
  MaybePublished(*operation, now);
  FinishEvent(now);
}

void Exchange::RowsRefused(const PeerOperation& name, Rank rank, const absl::Status& cause,
                           absl::Time now) {
  now_ = now;
  Tenant* tenant = FindTenant(name.group, name.formation);
  if (tenant == nullptr || !tenant->peers.has_value()) return;
  Operation* operation = FindByNumber(*tenant, name.number);
  if (operation == nullptr || !operation->undecided()) return;
  FailWithExecution(*operation,
                    absl::Status(cause.code(), absl::StrCat(NameRanks(*tenant, {rank}, "publish"),
                                                            ": ", cause.message())));
  FinishEvent(now);
}

void Exchange::MaybePublished(Operation& operation, absl::Time now) {
  Tenant& tenant = *operation.tenant;
  if (operation.phase != Phase::kAdmitted || operation.peers.reported || !tenant.ended.ok()) return;
  size_t num_remote = 0;
  for (uint32_t r = 0; r < operation.parts.size(); ++r) {
    if (!tenant.local(r)) {
      ++num_remote;
    } else if (operation.parts[r].state != PartState::kPublished) {
      return;
    }
  }
  if (!tenant.by_communicator() && operation.peers.landed.size() < num_remote) return;
  if (tenant.worker_executor()) {
    StartMove(operation, now);
  } else {
    TellPublished(operation, now);
  }
}

void Exchange::TellPublished(Operation& operation, absl::Time now) {
  operation.phase = Phase::kAdmitted;
  operation.peers.reported = true;
  Tenant& tenant = *operation.tenant;
  Tell(tenant, tenant.peers->leader, About(LeaderStep::kPublished, operation), now);
}

void Exchange::OnPublished(Tenant& tenant, Incarnation from, const PeerMessage& message,
                           absl::Time now) {
  Operation* operation = FindByNumber(tenant, message.number);
  if (operation == nullptr) return;
  if (operation->phase != Phase::kAdmitted && operation->phase != Phase::kMoving) return;
  operation->peers.published.insert(from);
  for (const Rank rank : RanksOf(*tenant.peers, from)) {
    operation->parts[rank.value].state = PartState::kPublished;
  }
  if (operation->peers.published.size() < tenant.peers->nodes.size()) return;
  TellOthers(tenant, About(LeaderStep::kDecided, *operation));
  DecideGood(*operation, now);
}

void Exchange::OnDecided(Tenant& tenant, const PeerMessage& message) {
  Operation* operation = FindByNumber(tenant, message.number);
  if (operation == nullptr || operation->phase != Phase::kAdmitted) return;
  if (operation->peers.reported) DecideGood(*operation, now_);
}

// ---- failure ----

void Exchange::AskLeaderToFail(Tenant& tenant, const OperationKey& key, const absl::Status& cause,
                               bool apart) {
  if (tenant.peers->leads()) return LeaderFails(tenant, key, cause, apart);
  PeerMessage message = About(LeaderStep::kRefuse, key, cause);
  message.apart = apart;
  Tell(tenant, tenant.peers->leader, std::move(message), now_);
}

void Exchange::OnRefused(Tenant& tenant, Incarnation from, const PeerMessage& message) {
  for (const TenantPeers::Failure& failure : tenant.peers->failures) {
    if (Covers(failure.key, message.key) && failure.unseen.contains(from)) return;  // It will see.
  }
  LeaderFails(tenant, message.key, message.cause, message.apart);
}

// `apart`: of streams; whether they have not met yet the leader knows.
void Exchange::LeaderFails(Tenant& tenant, const OperationKey& key, const absl::Status& cause,
                           bool apart) {
  apart = apart && tenant.aligning;
  const auto found = tenant.by_key.find(key);
  if (found != tenant.by_key.end() && !operations_.at(found->second)->undecided()) return;
  TenantPeers& peers = *tenant.peers;
  TenantPeers::Failure failure{.seq = ++peers.last_failure, .key = key, .unseen = {}};
  for (const PeerWorker& node : peers.nodes) {
    if (node.worker != peers.self) failure.unseen.insert(node.worker);
  }
  PeerMessage message = About(LeaderStep::kFailed, key, cause);
  message.failures_seen = failure.seq;
  message.apart = apart;
  peers.failures.push_back(std::move(failure));
  TellOthers(tenant, message);
  FailLocally(tenant, key, cause, apart);
  CancelMoves(tenant);
}

void Exchange::OnFailed(Tenant& tenant, const PeerMessage& message, absl::Time now) {
  tenant.peers->last_failure = message.failures_seen;
  PeerMessage seen;
  seen.step = LeaderStep::kFailedSeen;
  seen.failures_seen = message.failures_seen;
  Tell(tenant, tenant.peers->leader, std::move(seen), now);
  const auto found = tenant.by_key.find(message.key);
  if (!message.apart && found != tenant.by_key.end()) {
    const Operation& operation = *operations_.at(found->second);
    if (MayMeet(operation)) EndAligning(operation);
  }
  FailLocally(tenant, message.key, message.cause, message.apart);
  CancelMoves(tenant);
}

void Exchange::OnFailedSeen(Tenant& tenant, Incarnation from, const PeerMessage& message) {
  std::vector<TenantPeers::Failure>& failures = tenant.peers->failures;
  for (TenantPeers::Failure& failure : failures) {
    if (failure.seq <= message.failures_seen) failure.unseen.erase(from);
  }
  std::erase_if(failures, [](const TenantPeers::Failure& f) { return f.unseen.empty(); });
}

// `leader_spoke`: the leader says so, or cannot say anything any more. `report`: epd does not know.
void Exchange::EndWithPeers(Tenant& tenant, const absl::Status& cause, bool leader_spoke,
                            bool report) {
  TenantPeers& peers = *tenant.peers;
  if (peers.leads() || leader_spoke) peers.leader_spoke = true;
  if (tenant.ended.ok()) {
    tenant.ended = cause.ok() ? absl::AbortedError("the group has ended") : cause;
    const PeerMessage ended = About(LeaderStep::kEnded, OperationKey{}, tenant.ended);
    if (peers.leads()) {
      TellOthers(tenant, ended);
    } else if (!leader_spoke) {
      Tell(tenant, peers.leader, ended, now_);
    }
  }
  if (report && !tenant.closed && !std::exchange(peers.broken_reported, true)) {
    effects_.push_back(ReportTenantBroken{
        .group = tenant.start.group, .formation = tenant.start.formation, .cause = tenant.ended});
  }
  for (Operation* operation : UndecidedOf(tenant)) {
    if (operation->peers.reported && !peers.leader_spoke) {
      SetDeadline(*operation, now_ + kLeaderWord);
    } else {
      FailOperation(*operation, tenant.ended);
    }
  }
  if (peers.leader_spoke) CancelMoves(tenant);
}

void Exchange::PeerLost(Incarnation peer, const absl::Status& cause, absl::Time now) {
  now_ = now;
  for (auto& [unused, tenant] : tenants_) {
    if (tenant->gone() || !tenant->peers.has_value() || !Serves(*tenant->peers, peer)) continue;
    const TenantPeers& peers = *tenant->peers;
    const absl::Status lost = absl::UnavailableError(
        absl::StrCat(NameRanks(*tenant, RanksOf(peers, peer), "lost"), ": ", cause.message(),
                     "; the group forms anew when the node is back, or another takes its ranks"));
    EndWithPeers(*tenant, lost, peer == peers.leader, true);
  }
  FinishEvent(now);
}

}  // namespace epd
