#include "daemon/worker/engine/failures.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/resumable.h"
#include "daemon/worker/engine/cause_text.h"
#include "daemon/worker/engine/waiting_rows.h"
#include "proto/epd/v1/segment.h"

namespace epd {

bool IsUnsynchronised(const Operation& operation) {
  return operation.tenant->streams.synchronising() &&
         std::any_of(operation.parts.begin(), operation.parts.end(),
                     [](const Part& part) { return part.said.from_stream; });
}

void Failures::EndDirectOf(const Tenant& tenant) {
  if (tenant.goes_direct) event_.Add(EndDirect{.set = tenant.set});
}

void Failures::Fail(Operation& operation, const absl::Status& cause) {
  if (operation.undecided() && operation.tenant->peers.has_value())
    TellRowsOver(operation, messenger_);
  phases_.Fail(operation, cause);
}

void Failures::FailWithExecution(Operation& operation, const absl::Status& cause) {
  Tenant& tenant = *operation.tenant;
  const OperationKey key = operation.key;
  const bool unsynchronised = IsUnsynchronised(operation);
  if (!tenant.peers.has_value()) return FailLocally(tenant, key, cause, unsynchronised);
  if (!tenant.leads()) {
    table_.SetDeadline(operation,
                       event_.now + kLeaderFirst + tenant.start.spec.deadlines.undecided);
  }
  AskLeaderToFail(tenant, key, cause, unsynchronised);
}

void Failures::FailCall(Tenant& tenant, const OperationKey& key, Rank rank,
                        const absl::Status& cause, bool unsynchronised) {
  if (tenant.peers.has_value()) return AskLeaderToFail(tenant, key, cause, unsynchronised);
  if (unsynchronised) return;
  std::vector<bool> may_come(tenant.start.spec.num_ranks, true);
  if (key.named) may_come[rank.value] = false;
  FailExecution(tenant, key, cause, std::move(may_come));
}

// Not the execution, if the operation is of streams that are `unsynchronised`: until they are all their calls have one
// number, and the next one may be good.
void Failures::FailLocally(Tenant& tenant, const OperationKey& key, const absl::Status& cause,
                           bool unsynchronised) {
  DropRowsOf(tenant, key, event_);
  Operation* operation = table_.Find(tenant, key);
  std::vector<bool> may_come(tenant.num_ranks());
  for (uint32_t r = 0; r < tenant.num_ranks(); ++r) {
    // A name's execution is this operation alone.
    may_come[r] = tenant.local(r) && (!key.named || operation == nullptr ||
                                      operation->parts[r].state == PartState::kAbsent);
  }
  if (operation != nullptr) Fail(*operation, cause);
  if (!unsynchronised) FailExecution(tenant, key, cause, std::move(may_come));
}

// What waits for ranks in a failed execution would wait in vain; what all have announced goes on.
void Failures::FailExecution(Tenant& tenant, const OperationKey& key, const absl::Status& cause,
                             std::vector<bool> may_come) {
  EndDirectOf(tenant);
  if (!tenant.executions.Fail(key.execution, cause, std::move(may_come))) {
    EndGeneration(tenant, absl::ResourceExhaustedError(absl::StrCat(
                              "more than ", kMaxFailedExecutions,
                              " failed executions are remembered for ranks that have not come, or "
                              "more of programs than there is memory for")));
    return;
  }
  if (key.named) return;
  for (Operation* operation : table_.FindUndecided(tenant, key.execution)) {
    if (operation->phase != Phase::kGathering || operation->key.named) continue;
    Fail(*operation, cause);
  }
}

void Failures::EndGeneration(Tenant& tenant, const absl::Status& cause) {
  if (tenant.peers.has_value()) return EndWithPeers(tenant, cause, tenant.leads(), true);
  EndDirectOf(tenant);
  tenant.executions.EndGeneration(cause);
  tenant.streams.Restart();
  for (Operation* operation : table_.FindUndecided(tenant)) phases_.Fail(*operation, cause);
}

void Failures::EndDivergedGeneration(Tenant& tenant, const absl::Status& cause) {
  if (tenant.peers.has_value()) return EndWithPeers(tenant, cause, tenant.leads(), true);
  EndDirectOf(tenant);
  tenant.executions.EndDivergedGeneration(cause);
  for (Operation* operation : table_.FindUndecided(tenant)) phases_.Fail(*operation, cause);
}

void Failures::EndFormation(Tenant& tenant, const absl::Status& cause) {
  if (tenant.peers.has_value()) return EndWithPeers(tenant, cause, false, false);
  EndDirectOf(tenant);
  if (tenant.ended.ok()) tenant.ended = cause;
  for (Operation* operation : table_.FindUndecided(tenant)) phases_.Fail(*operation, tenant.ended);
}

void Failures::EndFormationAtOnce(Tenant& tenant, const absl::Status& cause) {
  if (tenant.peers.has_value()) return EndWithPeers(tenant, cause, true, false);
  EndFormation(tenant, cause);
}

void Failures::EndWithWorker(Tenant& tenant, absl::string_view why) {
  EndFormationAtOnce(tenant,
                     tenant.peers.has_value()
                         ? WorkerLost(tenant, tenant.peers->RanksOf(tenant.peers->self), why)
                         : WorkerStops(why));
}

// ---- streams of GPUs ----

void Failures::SynchroniseStreams(Tenant& tenant) {
  std::vector<Operation*> waiting;
  std::set<Rank> ranks;
  for (Operation* operation : table_.FindUndecided(tenant)) {
    if (operation->phase != Phase::kGathering) continue;
    bool from_stream = false;
    for (uint32_t r = 0; r < operation->parts.size(); ++r) {
      const Part& part = operation->parts[r];
      if (part.state != PartState::kAnnounced || !part.said.from_stream) continue;
      from_stream = true;
      ranks.insert(Rank(r));
    }
    if (from_stream) waiting.push_back(operation);
  }
  if (waiting.size() < 2 || ranks.size() < tenant.num_ranks()) return;
  const Operation* first =
      *std::min_element(waiting.begin(), waiting.end(), [](const Operation* a, const Operation* b) {
        return std::tie(a->key.ordinal, a->key.execution.program) <
               std::tie(b->key.ordinal, b->key.execution.program);
      });
  const absl::Status cause = absl::AbortedError(
      absl::StrCat("the ranks' streams were at different calls of their programs when the group "
                   "was formed or had failed; this call is skipped, so that they meet at ",
                   first->Describe(), "; begin again from one step on all ranks"));
  for (Operation* operation : waiting) {
    if (operation == first) continue;
    if (tenant.peers.has_value()) {
      FailAsLeader(tenant, OperationKey(operation->key), cause, true);
    } else {
      phases_.Fail(*operation, cause);
    }
  }
}

void Failures::NoteSynchronised(const Operation& operation) {
  std::vector<StreamRound::Call> waiting;
  for (uint32_t r = 0; r < operation.parts.size(); ++r) {
    waiting.emplace_back(Rank(r), operation.key.execution.program);
  }
  for (const Operation* other : table_.FindUndecided(*operation.tenant)) {
    for (uint32_t r = 0; r < other->parts.size(); ++r) {
      if (!other->parts[r].site.has_value()) continue;
      waiting.emplace_back(Rank(r), other->key.execution.program);
    }
  }
  operation.tenant->streams.Synchronise(waiting);
}

// ---- several workers ----

void Failures::AskLeaderToFail(Tenant& tenant, const OperationKey& key, const absl::Status& cause,
                               bool unsynchronised) {
  if (tenant.peers->leads()) return FailAsLeader(tenant, key, cause, unsynchronised);
  PeerMessage message = About(LeaderStep::kRefuse, key, cause);
  message.unsynchronised = unsynchronised;
  messenger_.Send(tenant, tenant.peers->leader, std::move(message));
}

void Failures::FailAsLeader(Tenant& tenant, const OperationKey& key, const absl::Status& cause,
                            bool unsynchronised) {
  unsynchronised = unsynchronised && tenant.streams.synchronising();
  const Operation* operation = table_.Find(tenant, key);
  if (operation != nullptr && !operation->undecided()) return;
  TenantPeers& peers = *tenant.peers;
  TenantPeers::Failure failure{.seq = ++peers.last_failure, .key = key, .unseen = {}};
  for (const PeerWorker& node : peers.nodes) {
    if (node.worker != peers.self) failure.unseen.insert(node.worker);
  }
  PeerMessage message = About(LeaderStep::kFailed, key, cause);
  message.failures_seen = failure.seq;
  message.unsynchronised = unsynchronised;
  peers.failures.push_back(std::move(failure));
  messenger_.SendToOthers(tenant, message);
  FailLocally(tenant, key, cause, unsynchronised);
  CancelMoves(tenant);
}

bool Failures::IsVoid(const Tenant& tenant, const PeerMessage& message) const {
  const std::vector<TenantPeers::Failure>& failures = tenant.peers->failures;
  return std::any_of(failures.begin(), failures.end(), [&](const TenantPeers::Failure& failure) {
    return failure.seq > message.failures_seen && Covers(failure.key, message.key);
  });
}

void Failures::OnRefused(Tenant& tenant, Incarnation from, const PeerMessage& message) {
  DropRowsOf(tenant, message.key, event_);
  for (const TenantPeers::Failure& failure : tenant.peers->failures) {
    if (Covers(failure.key, message.key) && failure.unseen.contains(from)) return;  // It will see.
  }
  FailAsLeader(tenant, message.key, message.cause, message.unsynchronised);
}

void Failures::OnFailed(Tenant& tenant, const PeerMessage& message) {
  tenant.peers->last_failure = message.failures_seen;
  PeerMessage seen;
  seen.step = LeaderStep::kFailedSeen;
  seen.failures_seen = message.failures_seen;
  messenger_.Send(tenant, tenant.peers->leader, std::move(seen));
  const Operation* operation = table_.Find(tenant, message.key);
  if (!message.unsynchronised && operation != nullptr && IsUnsynchronised(*operation)) {
    NoteSynchronised(*operation);
  }
  FailLocally(tenant, message.key, message.cause, message.unsynchronised);
  CancelMoves(tenant);
}

bool Failures::HoldRefusal(Tenant& tenant, Incarnation from, const PeerMessage& message) {
  const bool fails = tenant.leads()
                         ? message.step == LeaderStep::kRefuse
                         : message.step == LeaderStep::kFailed && from == tenant.peers->leader;
  if (!fails || tenant.draining || !tenant.ended.ok()) return false;
  auto& held = tenant.peers->refused_elsewhere;
  if (held.empty() && !IsResumable(message.cause)) return false;
  if (held.size() >= shm::kMaxOperations) HearRefusals(tenant);
  held.emplace_back(from, message);
  return true;
}

void Failures::HearRefusals(Tenant& tenant) {
  if (!tenant.peers.has_value()) return;
  for (const auto& [from, message] : std::exchange(tenant.peers->refused_elsewhere, {})) {
    tenant.leads() ? OnRefused(tenant, from, message) : OnFailed(tenant, message);
  }
}

void Failures::OnFailedSeen(Tenant& tenant, Incarnation from, const PeerMessage& message) {
  std::vector<TenantPeers::Failure>& failures = tenant.peers->failures;
  for (TenantPeers::Failure& failure : failures) {
    if (failure.seq <= message.failures_seen) failure.unseen.erase(from);
  }
  std::erase_if(failures, [](const TenantPeers::Failure& f) { return f.unseen.empty(); });
}

void Failures::OnEnded(Tenant& tenant, Incarnation from, const PeerMessage& message) {
  EndWithPeers(tenant, message.cause, from == tenant.peers->leader, false);
}

void Failures::PeerLost(Tenant& tenant, Incarnation peer, const absl::Status& cause) {
  const TenantPeers& peers = *tenant.peers;
  EndWithPeers(tenant, WorkerLost(tenant, peers.RanksOf(peer), cause.message()),
               peer == peers.leader, true);
}

// `leader_spoke`: the leader says so, or cannot say anything any more. `report`: epd does not know.
void Failures::EndWithPeers(Tenant& tenant, const absl::Status& cause, bool leader_spoke,
                            bool report) {
  TenantPeers& peers = *tenant.peers;
  DropAllRows(tenant, event_);
  if (peers.leads() || leader_spoke) peers.leader_spoke = true;
  if (tenant.ended.ok()) {
    tenant.ended = cause.ok() ? absl::AbortedError("the group has ended") : cause;
    const PeerMessage ended = About(LeaderStep::kEnded, OperationKey{}, tenant.ended);
    if (peers.leads()) {
      messenger_.SendToOthers(tenant, ended);
    } else if (!leader_spoke) {
      messenger_.Send(tenant, peers.leader, ended);
    }
  }
  if (report && !tenant.closed && !std::exchange(peers.broken_reported, true)) {
    event_.Add(ReportTenantBroken{
        .group = tenant.start.group, .formation = tenant.start.formation, .cause = tenant.ended});
  }
  for (Operation* operation : table_.FindUndecided(tenant)) {
    if (!peers.leader_spoke) {
      table_.SetDeadline(*operation, event_.now + kLeaderWord);
    } else {
      phases_.Fail(*operation, tenant.ended);
    }
  }
  if (peers.leader_spoke) CancelMoves(tenant);
}

// Failed operations take no part if their leader has said so before it gave them a place in the communicator's order.
void Failures::CancelMoves(const Tenant& tenant) {
  if (!tenant.by_communicator()) return;
  for (const auto& [id, operation] : table_.all()) {
    const bool waits = operation->phase == Phase::kFailed && operation->moving;
    if (operation->tenant != &tenant || !waits || operation->peers.has_place) continue;
    operation->peers.has_place = true;
    event_.Add(CancelMove{.operation = id, .set = tenant.set});
  }
}

}  // namespace epd
