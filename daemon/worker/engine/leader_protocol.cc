#include "daemon/worker/engine/leader_protocol.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/worker/engine/cause_text.h"
#include "daemon/worker/engine/waiting_rows.h"
#include "proto/epd/v1/region_layout.h"

namespace epd {

void LeaderProtocol::Tell(Tenant& tenant, Incarnation to, PeerMessage message) {
  if (to != parts_.messenger.self()) {
    parts_.messenger.Send(tenant, to, std::move(message));
  } else {
    HandleMessage(tenant, to, message);
  }
}

Operation* LeaderProtocol::Find(const Tenant& tenant, uint64_t number) const {
  const auto found = tenant.peers->by_number.find(number);
  return found == tenant.peers->by_number.end() ? nullptr : parts_.table.Find(found->second);
}

Operation* LeaderProtocol::HandleMessage(Tenant& tenant, Incarnation from,
                                         const PeerMessage& message) {
  if (parts_.failures.HoldRefusal(tenant, from, message)) return nullptr;
  const bool from_leader = from == tenant.peers->leader;
  // Once a formation has ended, only the leader's last words matter.
  if (message.step == LeaderStep::kEnded) {
    parts_.failures.OnEnded(tenant, from, message);
  } else if (message.step == LeaderStep::kDecided && from_leader) {
    OnDecided(tenant, message);
  } else if (message.step == LeaderStep::kIssue && from_leader) {
    OnIssue(tenant, message);
  } else if (message.step == LeaderStep::kFailed && from_leader) {
    parts_.failures.OnFailed(tenant, message);
  } else if (message.step == LeaderStep::kRows) {
    return parts_.ahead.Take(tenant, from, message);
  } else if (message.step == LeaderStep::kRowsOver) {
    parts_.ahead.ForgetRows(tenant, from, message);
  } else if (tenant.ended.ok() && tenant.peers->leads() &&
             message.step == LeaderStep::kRowsLanded) {
    return parts_.ahead.TakeLanded(tenant, from, message);
  } else if (tenant.ended.ok() && tenant.peers->leads() && message.step == LeaderStep::kAnnounce) {
    return OnAnnounce(tenant, from, message);
  } else if (tenant.ended.ok()) {
    if (from_leader) HandleOfLeader(tenant, message);
    if (tenant.peers->leads()) HandleAsLeader(tenant, from, message);
  }
  return nullptr;
}

void LeaderProtocol::HandleOfLeader(Tenant& tenant, const PeerMessage& message) {
  switch (message.step) {
    case LeaderStep::kReserve:
      return OnReserve(tenant, message);
    case LeaderStep::kRevoked:
      return OnRevoked(tenant, message);
    case LeaderStep::kAdmit:
      return OnAdmit(tenant, message);
    case LeaderStep::kSealed:
      tenant.streams_end = false;
      return;
    default:
      return;
  }
}

void LeaderProtocol::HandleAsLeader(Tenant& tenant, Incarnation from, const PeerMessage& message) {
  switch (message.step) {
    case LeaderStep::kRefuse:
      return parts_.failures.OnRefused(tenant, from, message);
    case LeaderStep::kGranted:
      return OnGranted(tenant, from, message);
    case LeaderStep::kRevoke:
      return OnRevoke(tenant, from, message);
    case LeaderStep::kPrepared:
      return OnPrepared(tenant, from, message);
    case LeaderStep::kPublished:
      return OnPublished(tenant, from, message);
    case LeaderStep::kFailedSeen:
      return parts_.failures.OnFailedSeen(tenant, from, message);
    case LeaderStep::kStreamsIdle:
      return OnStreamsIdle(tenant, from);
    default:
      return;
  }
}

// ---- gathering ----

void LeaderProtocol::TellAnnounced(const Operation& operation) {
  Tenant& tenant = *operation.tenant;
  PeerMessage message = About(LeaderStep::kAnnounce, operation.key, absl::OkStatus());
  message.name = operation.name;
  message.failures_seen = tenant.peers->last_failure;
  for (uint32_t r = 0; r < operation.parts.size(); ++r) {
    if (operation.parts[r].state != PartState::kAnnounced) continue;
    message.said.emplace_back(Rank(r), operation.parts[r].said);
    if (!operation.peers.ahead.sent) message.said.back().second.eager_buffer.reset();
    if (message.cause.ok()) message.cause = operation.parts[r].problem;
  }
  parts_.messenger.Send(tenant, tenant.peers->leader, std::move(message));
}

Operation* LeaderProtocol::OnAnnounce(Tenant& tenant, Incarnation from,
                                      const PeerMessage& message) {
  if (parts_.failures.IsVoid(tenant, message)) {
    DropRowsOf(tenant, message.key, parts_.event);
    return nullptr;
  }
  Operation* operation = parts_.table.Find(tenant, message.key);
  if (operation == nullptr) {
    if (const absl::Status room = parts_.table.CheckRoom(tenant); !room.ok()) {
      parts_.failures.FailAsLeader(
          tenant, message.key,
          absl::Status(room.code(), absl::StrCat("at the worker of rank 0: ", room.message())),
          !message.said.empty() && message.said[0].second.from_stream);
      return nullptr;
    }
    operation = &parts_.phases.Open(tenant, message.key, message.name);
  }
  if (operation->phase != Phase::kGathering) return nullptr;
  for (const auto& [rank, said] : message.said) {
    if (rank.value >= operation->parts.size() || tenant.peers->node_of_rank[rank.value] != from) {
      continue;
    }
    operation->parts[rank.value].state = PartState::kAnnounced;
    operation->parts[rank.value].announced = parts_.event.now;
    operation->parts[rank.value].said = said;
    operation->parts[rank.value].problem = message.cause;
  }
  return operation;
}

// ---- staging ----

void LeaderProtocol::AskReserve(Operation& operation, uint64_t bytes) {
  operation.peers.number = operation.id.value;
  PeerMessage message = About(LeaderStep::kReserve, operation);
  message.key = operation.key;
  message.ticket = parts_.messenger.DrawTicket();
  message.bytes = bytes;
  parts_.messenger.SendToOthers(*operation.tenant, message);
  OnReserve(*operation.tenant, message);
}

void LeaderProtocol::OnReserve(Tenant& tenant, const PeerMessage& message) {
  Operation* operation = parts_.table.Find(tenant, message.key);
  if (operation == nullptr || operation->phase != Phase::kGathering) return;
  parts_.ahead.GiveUp(*operation);
  TenantPeers& peers = *tenant.peers;
  operation->peers.number = message.number;
  peers.by_number[message.number] = operation->id;
  // All have announced.
  if (IsUnsynchronised(*operation)) parts_.failures.NoteSynchronised(*operation);
  const Rank mine = peers.RanksOf(peers.self)[0];
  const absl::Status fits = parts_.queue.CheckFits(
      *operation, message.bytes,
      absl::StrCat("the pool of ", Describe(tenant.MemberOf(mine.value), "here")));
  if (fits.ok()) {
    parts_.phases.Queue(*operation, message.bytes, message.ticket);
  } else {
    parts_.failures.AskLeaderToFail(tenant, OperationKey(operation->key), fits, false);
  }
}

void LeaderProtocol::TellGranted(Operation& operation) {
  Tenant& tenant = *operation.tenant;
  operation.peers.revoke_asked = false;
  operation.peers.wire_open = true;
  if (!tenant.by_communicator()) {
    OpenWire open{.operation = NameOf(operation),
                  .set = tenant.set,
                  .offset = operation.region->offset,
                  .bytes = operation.region->bytes,
                  .arenas = {},
                  .servers = {}};
    for (uint32_t r = 0; r < operation.parts.size(); ++r) {
      if (tenant.local(r)) continue;
      open.arenas[Rank(r)] = tenant.arena_of_rank[r];
      open.servers[Rank(r)] = tenant.peers->node_of_rank[r];
    }
    parts_.event.Add(std::move(open));
  }
  Tell(tenant, tenant.peers->leader, About(LeaderStep::kGranted, operation));
}

void LeaderProtocol::OnGranted(Tenant& tenant, Incarnation from, const PeerMessage& message) {
  Operation* operation = Find(tenant, message.number);
  if (operation == nullptr || operation->phase != Phase::kQueued) return;
  operation->peers.granted.insert(from);
  if (operation->peers.granted.size() < tenant.peers->nodes.size()) return;
  parts_.messenger.SendToOthers(tenant, About(LeaderStep::kAdmit, *operation));
  parts_.phases.Admit(*operation);
}

void LeaderProtocol::AskRevokes(const Ticket& older) {
  std::vector<Operation*> younger;
  for (const auto& [unused, operation] : parts_.table.all()) {
    const bool waits = operation->phase == Phase::kQueued && operation->peers.wire_open &&
                       !operation->in_stream_region;  // Which takes no pages.
    if (waits && operation->ticket > older && !operation->peers.revoke_asked) {
      younger.push_back(operation.get());
    }
  }
  for (Operation* operation : younger) {
    operation->peers.revoke_asked = true;
    Tenant& tenant = *operation->tenant;
    Tell(tenant, tenant.peers->leader, About(LeaderStep::kRevoke, *operation));
  }
}

void LeaderProtocol::OnRevoke(Tenant& tenant, Incarnation from, const PeerMessage& message) {
  Operation* operation = Find(tenant, message.number);
  if (operation == nullptr || operation->phase != Phase::kQueued) return;
  if (operation->peers.granted.erase(from) == 0) return;
  Tell(tenant, from, About(LeaderStep::kRevoked, *operation));
}

void LeaderProtocol::OnRevoked(Tenant& tenant, const PeerMessage& message) {
  Operation* operation = Find(tenant, message.number);
  if (operation == nullptr || operation->phase != Phase::kQueued || !operation->peers.wire_open) {
    return;
  }
  parts_.phases.CloseWire(*operation);
  parts_.queue.FreeRegion(*operation);
  parts_.phases.Queue(*operation, operation->staging_bytes, Ticket(operation->ticket));
}

void LeaderProtocol::OnAdmit(Tenant& tenant, const PeerMessage& message) {
  Operation* operation = Find(tenant, message.number);
  if (operation == nullptr || operation->phase != Phase::kQueued || !operation->peers.wire_open) {
    return;
  }
  parts_.phases.Admit(*operation);
}

// ---- the order of a communicator ----

void LeaderProtocol::RowsPrepared(const Operation& operation, PreparedRows rows) {
  PeerMessage message = About(LeaderStep::kPrepared, operation);
  message.bytes = rows.digest;
  message.tokens = std::move(rows.tokens_to);
  Tell(*operation.tenant, operation.tenant->peers->leader, std::move(message));
}

void LeaderProtocol::OnPrepared(Tenant& tenant, Incarnation from, const PeerMessage& message) {
  Operation* operation = Find(tenant, message.number);
  if (operation == nullptr || operation->peers.has_place) return;
  if (operation->phase != Phase::kAdmitted && operation->phase != Phase::kMoving) return;
  operation->peers.prepared[from] = {message.bytes, message.tokens};
  if (operation->peers.prepared.size() < tenant.peers->nodes.size()) return;
  const auto& [first, rows] = *operation->peers.prepared.begin();
  for (const auto& [worker, others] : operation->peers.prepared) {
    if (others.digest == rows.digest) continue;
    return parts_.failures.FailAsLeader(
        tenant, OperationKey(operation->key),
        absl::DataLossError(
            absl::StrCat(NameRanks(tenant, tenant.peers->RanksOf(worker), "publish"),
                         ": their plan has other counts than the plan of ",
                         NameRanks(tenant, tenant.peers->RanksOf(first), "publish"),
                         ", so one of the two is not of this prepare; prepare again")),
        false);
  }
  GiveIssuePlace(*operation);
}

void LeaderProtocol::GiveIssuePlace(Operation& operation) {
  Tenant& tenant = *operation.tenant;
  PeerMessage message = About(LeaderStep::kIssue, operation);
  message.bytes = next_place_[{tenant.start.communicator, tenant.start.epoch}]++;
  for (uint32_t r = 0; r < operation.parts.size(); ++r) {
    message.said.emplace_back(Rank(r), operation.parts[r].said);
  }
  auto tokens = TokensFrom(*tenant.peers, operation.peers.prepared);
  for (const PeerWorker& node : tenant.peers->nodes) {
    if (node.worker == tenant.peers->self) continue;
    message.tokens = std::move(tokens[node.worker]);
    parts_.messenger.Send(tenant, node.worker, message);
  }
  message.tokens = std::move(tokens[tenant.peers->self]);
  OnIssue(tenant, message);
}

// Also when the operation has failed here in the meantime: the others count on this worker.
void LeaderProtocol::OnIssue(Tenant& tenant, const PeerMessage& message) {
  Operation* operation = Find(tenant, message.number);
  if (operation == nullptr || !operation->moving) return;
  operation->peers.has_place = true;
  TakeTurn turn{.operation = operation->id,
                .set = tenant.set,
                .place = message.bytes,
                .recv_capacity = std::vector<uint64_t>(operation->parts.size()),
                .tokens_from = message.tokens};
  for (const auto& [rank, said] : message.said) {
    if (rank.value < turn.recv_capacity.size()) turn.recv_capacity[rank.value] = said.recv_capacity;
  }
  parts_.event.Add(std::move(turn));
}

// ---- rows and outcomes ----

void LeaderProtocol::SendStage(const Operation& operation, uint32_t rank) {
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
    if (node.worker == tenant.peers->self) continue;
    send.destinations[node.worker] = tenant.peers->RanksOf(node.worker);
  }
  parts_.event.Add(std::move(send));
}

void LeaderProtocol::RowsLanded(Operation& operation, Rank rank) {
  if (!operation.peers.wire_open) return;
  operation.peers.landed.insert(rank);
  MaybePublished(operation);
}

void LeaderProtocol::MaybePublished(Operation& operation) {
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
    parts_.phases.StartMove(operation);
  } else {
    TellPublished(operation);
  }
}

void LeaderProtocol::TellPublished(Operation& operation) {
  parts_.phases.ReportPublished(operation);
  Tenant& tenant = *operation.tenant;
  Tell(tenant, tenant.peers->leader, About(LeaderStep::kPublished, operation));
}

void LeaderProtocol::OnPublished(Tenant& tenant, Incarnation from, const PeerMessage& message) {
  Operation* operation = Find(tenant, message.number);
  if (operation == nullptr) return;
  if (operation->phase != Phase::kAdmitted && operation->phase != Phase::kMoving) return;
  operation->peers.published.insert(from);
  for (const Rank rank : tenant.peers->RanksOf(from)) {
    operation->parts[rank.value].state = PartState::kPublished;
  }
  if (operation->peers.published.size() < tenant.peers->nodes.size()) return;
  parts_.messenger.SendToOthers(tenant, About(LeaderStep::kDecided, *operation));
  parts_.phases.DecideGood(*operation);
}

void LeaderProtocol::OnDecided(Tenant& tenant, const PeerMessage& message) {
  Operation* operation = Find(tenant, message.number);
  if (operation == nullptr) return parts_.ahead.TakeWord(tenant, message);
  if (operation->phase != Phase::kAdmitted) return;
  if (operation->peers.reported) parts_.phases.DecideGood(*operation);
}

// ---- a drain in order ----

void LeaderProtocol::StreamsIdle(Tenant& tenant) {
  if (!tenant.peers.has_value()) {
    tenant.streams_end = false;
    return;
  }
  PeerMessage message;
  message.step = LeaderStep::kStreamsIdle;
  Tell(tenant, tenant.peers->leader, std::move(message));
}

void LeaderProtocol::OnStreamsIdle(Tenant& tenant, Incarnation from) {
  tenant.peers->idle_streams.insert(from);
  if (tenant.peers->idle_streams.size() < tenant.peers->nodes.size()) return;
  PeerMessage message;
  message.step = LeaderStep::kSealed;
  parts_.messenger.SendToOthers(tenant, message);
  tenant.streams_end = false;
}

}  // namespace epd
