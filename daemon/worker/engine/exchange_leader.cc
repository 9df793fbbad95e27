// Operations on several nodes: what the leader does, and what every worker does. peers.h.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/worker/engine/cause_text.h"
#include "daemon/worker/engine/exchange.h"
#include "daemon/worker/engine/leader_protocol.h"
#include "daemon/worker/engine/peer_naming.h"

namespace epd {

absl::Status Exchange::StartWithPeers(Tenant& tenant) {
  const TenantStart& start = tenant.start;
  if (start.on_device() && start.spec.executor == Executor::kClient) {
    return absl::UnimplementedError(
        "ranks of this group are on several devices or nodes, and with executor client each rank's "
        "kernels write into the others' staging, which must be on one device; form the group with "
        "executor worker, or on one device");
  }
  TenantPeers peers;
  peers.self = options_.self;
  peers.nodes = start.nodes;
  for (const RankHolder& member : start.members) {
    const auto node =
        std::find_if(start.nodes.begin(), start.nodes.end(),
                     [&](const PeerWorker& known) { return known.id() == member.server(); });
    if (node == start.nodes.end() || node->address.empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          ToString(member.server()), " of rank ", member.rank.value,
          " takes no streams from other nodes; start its epd with --wire_listen=host:port, a "
          "private address unless the cluster has TLS; its log says why"));
    }
    peers.node_of_rank.push_back(node->worker);
  }
  peers.leader = peers.node_of_rank[0];
  if (!Serves(peers, peers.self)) {
    return absl::FailedPreconditionError("the group was formed for an earlier worker of this node");
  }
  tenant.peers = std::move(peers);
  return absl::OkStatus();
}

void Exchange::Tell(Tenant& tenant, Incarnation to, PeerMessage message, absl::Time now) {
  message.group = tenant.start.group;
  message.formation = tenant.start.formation;
  message.clock = clock_;
  if (to == options_.self) return HandleMessage(tenant, to, message, now);
  effects_.push_back(SendToPeer{.peer = to, .message = std::move(message)});
}

void Exchange::TellOthers(Tenant& tenant, const PeerMessage& message) {
  for (const PeerWorker& node : tenant.peers->nodes) {
    if (node.worker != options_.self) Tell(tenant, node.worker, message, now_);
  }
}

void Exchange::Receive(Incarnation from, const PeerMessage& message, absl::Time now) {
  now_ = now;
  clock_ = std::max(clock_, message.clock);
  Tenant* tenant = FindTenant(message.group, message.formation);
  if (tenant != nullptr && tenant->peers.has_value() && Serves(*tenant->peers, from)) {
    HandleMessage(*tenant, from, message, now);
  }
  FinishEvent(now);
}

void Exchange::HandleMessage(Tenant& tenant, Incarnation from, const PeerMessage& message,
                             absl::Time now) {
  const bool from_leader = from == tenant.peers->leader;
  // Once a formation has ended, only the leader's last words matter.
  if (message.step == LeaderStep::kEnded)
    return EndWithPeers(tenant, message.cause, from_leader, false);
  if (message.step == LeaderStep::kDecided && from_leader) return OnDecided(tenant, message);
  if (message.step == LeaderStep::kIssue && from_leader) return OnIssue(tenant, message);
  if (!tenant.ended.ok()) return;
  if (from_leader) {
    switch (message.step) {
      case LeaderStep::kReserve:
        return OnReserve(tenant, message, now);
      case LeaderStep::kRevoked:
        return OnRevoked(tenant, message);
      case LeaderStep::kAdmit:
        return OnAdmit(tenant, message, now);
      case LeaderStep::kFailed:
        return OnFailed(tenant, message, now);
      default:
        break;
    }
  }
  if (!tenant.peers->leads()) return;
  switch (message.step) {
    case LeaderStep::kAnnounce:
      return OnAnnounce(tenant, from, message, now);
    case LeaderStep::kRefuse:
      return OnRefused(tenant, from, message);
    case LeaderStep::kGranted:
      return OnGranted(tenant, from, message, now);
    case LeaderStep::kRevoke:
      return OnRevoke(tenant, from, message, now);
    case LeaderStep::kPrepared:
      return OnPrepared(tenant, from, message, now);
    case LeaderStep::kPublished:
      return OnPublished(tenant, from, message, now);
    case LeaderStep::kFailedSeen:
      return OnFailedSeen(tenant, from, message);
    default:
      return;
  }
}

Operation* Exchange::FindByNumber(Tenant& tenant, uint64_t number) {
  const auto found = tenant.peers->by_number.find(number);
  return found == tenant.peers->by_number.end() ? nullptr : operations_.at(found->second).get();
}

// ---- gathering ----

void Exchange::TellAnnounced(const Operation& operation, absl::Time now) {
  Tenant& tenant = *operation.tenant;
  PeerMessage message = About(LeaderStep::kAnnounce, operation.key, absl::OkStatus());
  message.name = operation.name;
  message.failures_seen = tenant.peers->last_failure;
  for (uint32_t r = 0; r < operation.parts.size(); ++r) {
    if (operation.parts[r].state != PartState::kAnnounced) continue;
    message.said.emplace_back(Rank(r), operation.parts[r].said);
    if (message.cause.ok()) message.cause = operation.parts[r].problem;
  }
  Tell(tenant, tenant.peers->leader, std::move(message), now);
}

void Exchange::OnAnnounce(Tenant& tenant, Incarnation from, const PeerMessage& message,
                          absl::Time now) {
  for (const TenantPeers::Failure& failure : tenant.peers->failures) {
    if (failure.seq > message.failures_seen && Covers(failure.key, message.key)) return;
  }
  const auto found = tenant.by_key.find(message.key);
  if (found == tenant.by_key.end() && operations_.size() >= options_.max_open_operations) {
    return LeaderFails(tenant, message.key,
                       absl::ResourceExhaustedError(absl::StrCat(
                           options_.max_open_operations,
                           " operations are open on the node of rank 0, the most there may be")),
                       !message.said.empty() && message.said[0].second.from_stream);
  }
  Operation& operation = found == tenant.by_key.end()
                             ? Create(tenant, message.key, message.name, now)
                             : *operations_.at(found->second);
  if (operation.phase != Phase::kGathering) return;
  for (const auto& [rank, said] : message.said) {
    if (rank.value >= operation.parts.size() || tenant.peers->node_of_rank[rank.value] != from) {
      continue;
    }
    operation.parts[rank.value].state = PartState::kAnnounced;
    operation.parts[rank.value].said = said;
    operation.parts[rank.value].problem = message.cause;
  }
  if (!operation.Any(PartState::kAbsent)) {
    AllAnnounced(operation, now);
  } else if (MayMeet(operation)) {
    Align(tenant);
  }
}

// ---- staging ----

void Exchange::AskReserve(Operation& operation, uint64_t bytes, absl::Time now) {
  operation.peers.number = operation.id.value;
  PeerMessage message = About(LeaderStep::kReserve, operation);
  message.key = operation.key;
  message.ticket = {++clock_, options_.self};
  message.bytes = bytes;
  TellOthers(*operation.tenant, message);
  OnReserve(*operation.tenant, message, now);
}

void Exchange::OnReserve(Tenant& tenant, const PeerMessage& message, absl::Time now) {
  const auto found = tenant.by_key.find(message.key);
  if (found == tenant.by_key.end()) return;
  Operation& operation = *operations_.at(found->second);
  if (operation.phase != Phase::kGathering) return;
  operation.peers.number = message.number;
  tenant.peers->by_number[message.number] = operation.id;
  if (MayMeet(operation)) EndAligning(operation);  // All have announced.
  if (const absl::Status fits = CheckStreamRegion(operation, message.bytes); !fits.ok()) {
    return AskLeaderToFail(tenant, operation.key, fits, false);
  }
  if (!operation.in_stream_region && !staging_.EverFits(tenant.set, message.bytes)) {
    return AskLeaderToFail(
        tenant, operation.key,
        absl::ResourceExhaustedError(absl::StrCat(
            "the operation needs ", message.bytes, " bytes of staging for each of ",
            operation.parts.size(), " ranks on every node, the pool of ",
            Describe(tenant.start.members[RanksOf(*tenant.peers, options_.self)[0].value], "here"),
            " has ", options_.staging_bytes,
            "; start epd with a larger staging pool, or send fewer tokens per call")),
        false);
  }
  Enqueue(operation, message.bytes, message.ticket, now);
}

void Exchange::TellGranted(Operation& operation, absl::Time now) {
  Tenant& tenant = *operation.tenant;
  operation.peers.revoke_asked = false;
  operation.peers.wire_open = true;
  if (tenant.by_communicator()) {
    return Tell(tenant, tenant.peers->leader, About(LeaderStep::kGranted, operation), now);
  }
  OpenWire open{.operation = NameOf(operation),
                .set = tenant.set,
                .offset = operation.region->offset,
                .bytes = operation.region->bytes,
                .arenas = {}};
  for (uint32_t r = 0; r < operation.parts.size(); ++r) {
    if (!tenant.local(r)) open.arenas[Rank(r)] = tenant.arena_of_rank[r];
  }
  effects_.push_back(std::move(open));
  Tell(tenant, tenant.peers->leader, About(LeaderStep::kGranted, operation), now);
}

void Exchange::OnGranted(Tenant& tenant, Incarnation from, const PeerMessage& message,
                         absl::Time now) {
  Operation* operation = FindByNumber(tenant, message.number);
  if (operation == nullptr || operation->phase != Phase::kQueued) return;
  operation->peers.granted.insert(from);
  if (operation->peers.granted.size() < tenant.peers->nodes.size()) return;
  TellOthers(tenant, About(LeaderStep::kAdmit, *operation));
  Admit(*operation, now);
}

// Asks for the regions of everything that is behind `older` and not admitted.
void Exchange::AskRevokes(const Ticket& older, absl::Time now) {
  std::vector<Operation*> younger;
  for (const auto& [unused, operation] : operations_) {
    const bool waits = operation->phase == Phase::kQueued && operation->peers.wire_open &&
                       !operation->in_stream_region;  // Which takes no pages.
    if (waits && operation->ticket > older && !operation->peers.revoke_asked) {
      younger.push_back(operation.get());
    }
  }
  for (Operation* operation : younger) {
    operation->peers.revoke_asked = true;
    Tenant& tenant = *operation->tenant;
    Tell(tenant, tenant.peers->leader, About(LeaderStep::kRevoke, *operation), now);
  }
}

void Exchange::OnRevoke(Tenant& tenant, Incarnation from, const PeerMessage& message,
                        absl::Time now) {
  Operation* operation = FindByNumber(tenant, message.number);
  if (operation == nullptr || operation->phase != Phase::kQueued) return;
  if (operation->peers.granted.erase(from) == 0) return;
  Tell(tenant, from, About(LeaderStep::kRevoked, *operation), now);
}

void Exchange::OnRevoked(Tenant& tenant, const PeerMessage& message) {
  Operation* operation = FindByNumber(tenant, message.number);
  if (operation == nullptr || operation->phase != Phase::kQueued || !operation->peers.wire_open) {
    return;
  }
  CloseWireOf(*operation);
  FreeRegion(*operation);
  Enqueue(*operation, operation->staging_bytes, operation->ticket, now_);
}

void Exchange::OnAdmit(Tenant& tenant, const PeerMessage& message, absl::Time now) {
  Operation* operation = FindByNumber(tenant, message.number);
  if (operation == nullptr || operation->phase != Phase::kQueued || !operation->peers.wire_open) {
    return;
  }
  Admit(*operation, now);
}

}  // namespace epd
