// Outcomes: decided once, recorded before anybody is told, the same for every rank.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/worker/engine/cause_text.h"
#include "daemon/worker/engine/exchange.h"

namespace epd {

void Exchange::Answer(const Operation& operation, uint32_t rank, shm::Step step,
                      const absl::Status& status) {
  AnswerSubmission answer{
      .submission = operation.parts[rank].submission,
      .status = status,
      .operation = operation.id,
      .region = {},
      .plan_id = operation.peers.number != 0 ? operation.peers.number : operation.id.value};
  if (!status.ok()) {
    answer.status = ForClient(status, *operation.tenant, rank, step);
  } else if (operation.region.has_value()) {
    answer.region = ViewOf(operation, rank);
  }
  const Part& part = operation.parts[rank];
  const bool prepares = part.said.kind == shm::Kind::kPrepare;
  if (part.site.has_value() && status.ok() &&
      (prepares || !operation.tenant->worker_moves(part.said.kind))) {
    answer.plan_name = shm::PlanName{.group_id = operation.tenant->start.group.value,
                                     .epoch = operation.tenant->start.epoch.value,
                                     .plan_id = prepares ? answer.plan_id : part.said.plan_id};
  }
  NoteCause(answer.submission, answer.status);
  effects_.push_back(std::move(answer));
}

// A stream arms all steps of a use, whatever became of it.
void Exchange::NoteCause(const Submission& submission, const absl::Status& status) {
  if (status.ok()) return;
  const auto site = sites_.find({submission.session, submission.slot});
  if (site != sites_.end()) site->second.cause = status;
}

void Exchange::Refuse(const Submission& submission, const absl::Status& status) {
  NoteCause(submission, status);
  effects_.push_back(AnswerSubmission{
      .submission = submission, .status = status, .operation = {}, .region = {}, .plan_id = 0});
}

// The rank's part is over: it was told the end.
void Exchange::Finish(Operation& operation, uint32_t rank) {
  operation.tenant->past->Ended(operation, rank, operation.cause.code(), now_);
  operation.parts[rank].state = PartState::kDone;
  if (const std::optional<uint32_t> site = operation.parts[rank].site) {
    FreeSite({operation.tenant->start.members[rank].session, *site});
  }
  const auto session = sessions_.find(operation.tenant->start.members[rank].session);
  if (session != sessions_.end()) --session->second.num_parts;
}

void Exchange::DecideGood(Operation& operation, absl::Time now) {
  Tenant& tenant = *operation.tenant;
  operation.phase = Phase::kGood;
  operation.phase_since = now;
  SetDeadline(operation, now + options_.hold_limit);
  ++tenant.num_good;
  for (const Part& part : operation.parts) tenant.bytes_moved += part.said.stage_bytes;
  const bool is_eager = !operation.region.has_value();
  if (is_eager) TellEagerBuffers(operation);
  effects_.push_back(DecideRecord{.operation = operation.id, .status = absl::OkStatus()});
  if (operation.parts[0].said.kind == shm::Kind::kPrepare) {
    effects_.push_back(CountRoutes{.group = tenant.start.group,
                                   .formation = tenant.start.formation,
                                   .set = tenant.set,
                                   .offsets = StageOffsets(operation),
                                   .num_experts = tenant.start.spec.num_experts});
  }
  CloseWireOf(operation);
  for (uint32_t r = 0; r < operation.parts.size(); ++r) {
    if (!tenant.local(r)) {
      operation.parts[r].state = PartState::kDone;
      continue;
    }
    operation.parts[r].state = PartState::kReading;
    Answer(operation, r, is_eager ? shm::Step::kAnnounceStaged : shm::Step::kPublish,
           absl::OkStatus());
  }
}

void Exchange::TellEagerBuffers(const Operation& operation) {
  std::vector<uint8_t> eager;
  for (const Part& part : operation.parts) eager.push_back(*part.said.eager_buffer);
  for (const Part& part : operation.parts) {
    effects_.push_back(NameEagerBuffers{
        .submission = part.submission, .operation = operation.id, .eager_buffer_of_rank = eager});
  }
}

// By arena of the operation's set.
std::vector<uint64_t> Exchange::StageOffsets(const Operation& operation) const {
  const Tenant& tenant = *operation.tenant;
  const EagerArea eager = staging_.FindEagerArea(tenant.set);
  std::vector<uint64_t> offsets(operation.parts.size());
  for (uint32_t r = 0; r < operation.parts.size(); ++r) {
    const auto arena = static_cast<size_t>(tenant.arena_of_rank[r]);
    offsets[arena] = operation.region.has_value()
                         ? operation.region->offset
                         : eager.offset + *operation.parts[r].said.eager_buffer *
                                              staging_.eager_options().buffer_bytes;
  }
  return offsets;
}

void Exchange::FailOperation(Operation& operation, const absl::Status& cause) {
  if (!operation.undecided()) return;
  Tenant& tenant = *operation.tenant;
  if (operation.phase == Phase::kQueued && !operation.region.has_value()) {
    std::erase(queue_, operation.id);
    pump_ = true;
  }
  operation.phase = Phase::kFailed;
  operation.phase_since = now_;
  operation.cause = cause;
  ++tenant.num_failed;
  tenant.by_key.erase(operation.key);
  effects_.push_back(DecideRecord{.operation = operation.id, .status = cause});
  CloseWireOf(operation);
  for (uint32_t r = 0; r < operation.parts.size(); ++r) {
    if (!tenant.local(r)) operation.parts[r].state = PartState::kDone;
    const PartState state = operation.parts[r].state;
    if (state != PartState::kAnnounced && state != PartState::kPublished) continue;
    Answer(operation, r,
           state == PartState::kAnnounced ? shm::Step::kAnnounce : shm::Step::kPublish, cause);
    Finish(operation, r);
  }
  SetDeadline(operation, now_ + options_.hold_limit);
  CloseIfOver(operation);
}

void Exchange::FailWithExecution(Operation& operation, const absl::Status& cause) {
  Tenant& tenant = *operation.tenant;
  const OperationKey key = operation.key;
  const bool apart = MayMeet(operation);
  if (tenant.peers.has_value()) {
    if (!tenant.leads()) {
      SetDeadline(operation, now_ + kLeaderFirst + tenant.start.spec.deadlines.undecided);
    }
    return AskLeaderToFail(tenant, key, cause, apart);
  }
  FailLocally(tenant, key, cause, apart);
}

// Fails the operation of `key`, where there is one, and its execution; not that if it is of streams that are
// `apart`: as long as they have not met all their uses have one number, and the next one may be good.
void Exchange::FailLocally(Tenant& tenant, const OperationKey& key, const absl::Status& cause,
                           bool apart) {
  const auto found = tenant.by_key.find(key);
  Operation* operation =
      found == tenant.by_key.end() ? nullptr : operations_.at(found->second).get();
  std::set<Rank> may_come;
  for (uint32_t r = 0; r < tenant.start.members.size(); ++r) {
    if (!tenant.local(r)) continue;
    // A name's execution is this operation alone.
    const bool may =
        !key.named || operation == nullptr || operation->parts[r].state == PartState::kAbsent;
    if (may) may_come.insert(Rank(r));
  }
  if (operation != nullptr) FailOperation(*operation, cause);
  if (!apart) FailExecution(tenant, key, cause, may_come);
}

// What waits for ranks in a failed execution would wait in vain; what all have announced goes on.
void Exchange::FailExecution(Tenant& tenant, const OperationKey& key, const absl::Status& cause,
                             const std::set<Rank>& may_come) {
  if (!tenant.book.Fail(key.execution, key.named, cause, may_come)) {
    EndGeneration(tenant, absl::ResourceExhaustedError(absl::StrCat(
                              "more than ", kMaxFailedExecutions,
                              " failed executions are remembered for ranks that have not come")));
    return;
  }
  if (key.named) return;
  for (Operation* operation : UndecidedOf(tenant)) {
    if (operation->phase != Phase::kGathering) continue;
    if (operation->key.named || operation->key.execution != key.execution) continue;
    FailOperation(*operation, cause);
  }
}

void Exchange::EndGeneration(Tenant& tenant, const absl::Status& cause) {
  if (tenant.peers.has_value()) return EndWithPeers(tenant, cause, tenant.leads(), true);
  tenant.book.EndGeneration(cause);
  tenant.aligning = true;
  ++tenant.stream_round;
  for (Operation* operation : UndecidedOf(tenant)) FailOperation(*operation, cause);
}

void Exchange::EndDivergedGeneration(Tenant& tenant, const absl::Status& cause) {
  if (tenant.peers.has_value()) return EndWithPeers(tenant, cause, tenant.leads(), true);
  tenant.book.EndDivergedGeneration(cause);
  for (Operation* operation : UndecidedOf(tenant)) FailOperation(*operation, cause);
}

std::vector<Operation*> Exchange::UndecidedOf(const Tenant& tenant) {
  std::vector<Operation*> undecided;
  for (const auto& [unused, id] : tenant.by_key) {
    Operation* operation = operations_.at(id).get();
    if (operation->undecided()) undecided.push_back(operation);
  }
  return undecided;
}

void Exchange::CloseIfOver(Operation& operation) {
  if (operation.undecided() || operation.held()) return;
  for (uint32_t r = 0; r < operation.parts.size(); ++r) {
    if (operation.parts[r].state != PartState::kPulled) continue;
    Answer(operation, r, shm::Step::kPulled, absl::OkStatus());
    Finish(operation, r);
  }
  Tenant& tenant = *operation.tenant;
  if (tenant.peers.has_value()) tenant.peers->by_number.erase(operation.peers.number);
  FreeRegion(operation);
  effects_.push_back(CloseRecord{.operation = operation.id});
  record_slots_.erase(operation.id.value % shm::kMaxOperations);
  SetDeadline(operation, absl::InfiniteFuture());
  if (const auto found = tenant.by_key.find(operation.key);
      found != tenant.by_key.end() && found->second == operation.id) {
    tenant.by_key.erase(found);
  }
  operations_.erase(operation.id);
  --tenant.num_open;
  ReleaseTenantIfIdle(tenant);
}

}  // namespace epd
