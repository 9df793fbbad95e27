#include "daemon/worker/engine/rows_ahead.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/worker/engine/cause_text.h"
#include "daemon/worker/engine/waiting_rows.h"

namespace epd {
namespace {

// Whether own rows are on the streams and all others' have landed.
bool IsComplete(const Operation& operation) {
  size_t num_remote = 0;
  for (uint32_t r = 0; r < operation.parts.size(); ++r) num_remote += !operation.tenant->local(r);
  const OperationPeers::Ahead& ahead = operation.peers.ahead;
  return ahead.sent && ahead.landed.size() == num_remote;
}

// Whether that is so on all workers. The leader's announces say it where they are two.
bool IsCompleteEverywhere(const Operation& operation) {
  const size_t num_others = operation.tenant->peers->nodes.size() - 1;
  return IsComplete(operation) && operation.peers.ahead.landed_at.size() == num_others;
}

// Where other workers' ranks' rows stand here.
void NameLanding(Operation& operation) {
  for (uint32_t r = 0; r < operation.parts.size(); ++r) {
    if (operation.tenant->local(r)) continue;
    operation.parts[r].said.eager_buffer = operation.peers.ahead.landing;
  }
}

}  // namespace

bool RowsAhead::Sends(Operation& operation) {
  Tenant& tenant = *operation.tenant;
  OperationPeers::Ahead& ahead = operation.peers.ahead;
  if (!tenant.sends_ahead() || operation.phase != Phase::kGathering) return false;
  if (ahead.begun) return ahead.sending;
  bool staged = true;
  for (uint32_t r = 0; r < operation.parts.size(); ++r) {
    const Part& part = operation.parts[r];
    if (!tenant.local(r)) continue;
    if (part.state != PartState::kAnnounced) return false;
    staged = staged && part.said.eager_buffer.has_value();
  }
  ahead.begun = true;
  if (staged) ahead.landing = parts_.staging.TakeLanding(tenant.set);
  if (!ahead.landing.has_value()) return false;
  ahead.sending = true;

  TenantPeers& peers = *tenant.peers;
  if (const auto waiting = peers.rows_ahead.find(operation.key);
      waiting != peers.rows_ahead.end()) {
    for (const Rank rank : waiting->second) Land(operation, rank);
    peers.rows_ahead.erase(waiting);
  }
  const EagerArea eager = parts_.staging.FindEagerArea(tenant.set);
  SendRowsAhead send{.operation = operation.id,
                     .group = tenant.start.group,
                     .formation = tenant.start.formation,
                     .set = tenant.set,
                     .destinations = {},
                     .stages = {}};
  for (const PeerWorker& node : peers.nodes) {
    if (node.worker != peers.self) send.destinations[node.worker] = peers.RanksOf(node.worker);
  }
  for (uint32_t r = 0; r < operation.parts.size(); ++r) {
    if (!tenant.local(r)) continue;
    const Announcement& said = operation.parts[r].said;
    PeerMessage message = About(LeaderStep::kRows, operation.key, absl::OkStatus());
    message.failures_seen = peers.last_failure;
    message.said.emplace_back(Rank(r), Announcement());
    send.stages.push_back(
        {.message = parts_.messenger.Signed(tenant, std::move(message)),
         .rank = Rank(r),
         .arena = tenant.arena_of_rank[r],
         .offset = eager.offset + *said.eager_buffer * parts_.staging.eager_options().buffer_bytes,
         .said = said});
  }
  parts_.event.Add(std::move(send));
  return true;
}

bool RowsAhead::Keep(Tenant& tenant, Operation* operation, Incarnation from,
                     const PeerMessage& message) {
  TenantPeers& peers = *tenant.peers;
  const Rank rank = message.said.empty() ? Rank() : message.said[0].first;
  const bool known = message.said.size() == 1 && rank.value < peers.node_of_rank.size() &&
                     peers.node_of_rank[rank.value] == from && from != peers.self;
  OperationPeers::Ahead* ahead = operation == nullptr ? nullptr : &operation->peers.ahead;
  const bool gathers = operation == nullptr || operation->phase == Phase::kGathering;
  if (known && gathers && ahead != nullptr && ahead->landing.has_value() &&
      !ahead->landed.contains(rank)) {
    Land(*operation, rank);
    return true;
  }
  const bool waits = known && gathers && tenant.sends_ahead() && tenant.ended.ok() &&
                     (ahead == nullptr || !ahead->begun);
  if (!waits) {
    parts_.event.Add(DropRows{NameRows(from, message)});
    return true;
  }
  size_t num_waiting = 0;
  for (const auto& [unused, ranks] : peers.rows_ahead) {
    num_waiting += static_cast<size_t>(std::count_if(ranks.begin(), ranks.end(), [&](Rank other) {
      return peers.node_of_rank[other.value] == from;
    }));
  }
  if (num_waiting >= shm::kFewEagerBuffers * peers.RanksOf(from).size()) {
    parts_.event.Add(DropRows{NameRows(from, message)});
    return false;
  }
  peers.rows_ahead[message.key].insert(rank);
  return true;
}

void RowsAhead::Land(Operation& operation, Rank rank) {
  const Tenant& tenant = *operation.tenant;
  OperationPeers::Ahead& ahead = operation.peers.ahead;
  parts_.event.Add(
      LandRows{.operation = operation.id,
               .name = NameOf(tenant, operation.key, rank),
               .set = tenant.set,
               .arena = tenant.arena_of_rank[rank.value],
               .offset = parts_.staging.FindEagerArea(tenant.set).offset +
                         *ahead.landing * parts_.staging.eager_options().buffer_bytes});
  ahead.landed.insert(rank);
}

bool RowsAhead::Sent(Operation& operation) {
  OperationPeers::Ahead& ahead = operation.peers.ahead;
  if (operation.phase != Phase::kGathering || !std::exchange(ahead.sending, false)) return false;
  return ahead.sent = true;
}

Operation* RowsAhead::Take(Tenant& tenant, Incarnation from, const PeerMessage& message) {
  Operation* operation = parts_.table.Find(tenant, message.key);
  if (Keep(tenant, operation, from, message)) {
    if (operation == nullptr) return nullptr;
    TellLanded(*operation);
    return CanBeDecided(*operation) ? operation : nullptr;
  }
  parts_.failures.EndGeneration(
      tenant, absl::DataLossError(absl::StrCat(
                  NameRanks(tenant, tenant.peers->RanksOf(from), "announce"),
                  ": their worker sends rows of more calls than its ranks can have open; run one "
                  "version of epd on all nodes")));
  return nullptr;
}

bool RowsAhead::CanBeDecided(const Operation& operation) {
  return operation.tenant->leads() && operation.phase == Phase::kGathering &&
         !operation.tenant->peers->are_two() && IsCompleteEverywhere(operation);
}

void RowsAhead::TellLanded(Operation& operation) {
  const Tenant& tenant = *operation.tenant;
  OperationPeers::Ahead& ahead = operation.peers.ahead;
  if (tenant.leads() || tenant.peers->are_two() || !tenant.ended.ok()) return;
  if (!IsComplete(operation) || std::exchange(ahead.told_landed, true)) return;
  PeerMessage message = About(LeaderStep::kRowsLanded, operation.key, absl::OkStatus());
  message.failures_seen = tenant.peers->last_failure;
  parts_.messenger.Send(tenant, tenant.peers->leader, std::move(message));
}

Operation* RowsAhead::TakeLanded(Tenant& tenant, Incarnation from, const PeerMessage& message) {
  if (parts_.failures.IsVoid(tenant, message)) return nullptr;
  Operation* operation = parts_.table.Find(tenant, message.key);
  if (operation == nullptr || from == tenant.peers->self) return nullptr;
  operation->peers.ahead.landed_at.insert(from);
  return CanBeDecided(*operation) ? operation : nullptr;
}

void RowsAhead::ForgetRows(Tenant& tenant, Incarnation from, const PeerMessage& message) {
  TenantPeers& peers = *tenant.peers;
  const auto waiting = peers.rows_ahead.find(message.key);
  if (waiting == peers.rows_ahead.end()) return;
  std::erase_if(waiting->second, [&](Rank rank) {
    if (peers.node_of_rank[rank.value] != from) return false;
    parts_.event.Add(DropRows{NameOf(tenant, message.key, rank)});
    return true;
  });
  if (waiting->second.empty()) peers.rows_ahead.erase(waiting);
}

void RowsAhead::Decide(Operation& operation) {
  if (!operation.tenant->peers->are_two()) {
    if (!IsCompleteEverywhere(operation)) return;  // It comes again.
  } else if (!IsComplete(operation)) {
    return RefuseIncomplete(operation);
  }
  operation.peers.number = operation.id.value;
  PeerMessage message = About(LeaderStep::kDecided, operation);
  message.key = operation.key;
  parts_.messenger.SendToOthers(*operation.tenant, message);
  NameLanding(operation);
  parts_.phases.DecideGood(operation);
}

void RowsAhead::TakeWord(Tenant& tenant, const PeerMessage& message) {
  Operation* operation = parts_.table.Find(tenant, message.key);
  if (operation == nullptr || operation->phase != Phase::kGathering) return;
  if (!IsComplete(*operation)) return RefuseIncomplete(*operation);
  operation->peers.number = message.number;
  NameLanding(*operation);
  parts_.phases.DecideGood(*operation);
}

// What is said is said in order, so a worker of this version does not do it.
void RowsAhead::RefuseIncomplete(Operation& operation) {
  parts_.failures.EndGeneration(
      *operation.tenant,
      absl::DataLossError(absl::StrCat(operation.Describe(),
                                       ": the other worker goes on without the rows that were to "
                                       "go ahead; run one version of epd on all nodes")));
}

void RowsAhead::GiveUp(Operation& operation) {
  OperationPeers::Ahead& ahead = operation.peers.ahead;
  TellRowsOver(operation, parts_.messenger);
  if (ahead.landing.has_value()) {
    parts_.staging.FreeLanding(operation.tenant->set, *ahead.landing);
  }
  ahead = {.begun = true};
  DropWaitingRows(*operation.tenant, parts_.event,
                  [&](const OperationKey& key) { return key == operation.key; });
}

}  // namespace epd
