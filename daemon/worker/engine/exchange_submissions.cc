// The three steps of an operation, as ranks take them.
#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "daemon/worker/engine/agreement.h"
#include "daemon/worker/engine/cause_text.h"
#include "daemon/worker/engine/exchange.h"
#include "daemon/worker/engine/request_check.h"
#include "proto/epd/v1/operation_kind.h"
#include "proto/epd/v1/region_layout.h"

namespace epd {
namespace {

// A session's operations at one time; one slot serves one operation.
constexpr size_t kMaxPartsPerSession = shm::kSlotsPerSession;

uint64_t BytesOf(const Announcement& said) {
  return shm::RoundUpToRegionAlignment(said.stage_bytes) + said.out_bytes;
}

absl::Status AtRank(const absl::Status& problem, const Tenant& tenant,
                    const shm::SlotRequest& request) {
  const std::string place = NameRanks(tenant, {Rank(request.rank)}, PhaseName(request.step));
  return absl::Status(problem.code(), absl::StrCat(place, ": ", problem.message()));
}

OperationKey KeyOf(const shm::SlotRequest& request, const Execution& execution) {
  return OperationKey{.execution = execution,
                      .ordinal = request.ordinal,
                      .occurrence = request.occurrence,
                      .named = request.has_name != 0};
}

std::set<Rank> AllRanks(const Tenant& tenant) {
  std::set<Rank> ranks;
  for (uint32_t r = 0; r < tenant.start.spec.num_ranks; ++r) ranks.insert(Rank(r));
  return ranks;
}

}  // namespace

void Exchange::Take(const Submission& submission, const shm::SlotRequest& request, absl::Time now) {
  now_ = now;
  switch (request.step) {
    case shm::Step::kAnnounce:
    case shm::Step::kAnnounceStaged:
      Announce(submission, request, now);
      break;
    case shm::Step::kPublish:
      Publish(submission, request, now);
      break;
    case shm::Step::kPulled:
      Pulled(submission, request);
      break;
    case shm::Step::kStreamAnnounce:
    case shm::Step::kStreamPublish:
    case shm::Step::kStreamPulled:
      TakeStream(submission, request, now);
      break;
    default:
      Refuse(submission, ForStranger(absl::InvalidArgumentError(absl::StrCat(
                                         "step is ", static_cast<uint32_t>(request.step),
                                         ", expected 1 (announce), 2 (publish), 3 (pulled) or 4 "
                                         "(announce staged), or 5 to 7 from a stream")),
                                     request));
  }
  FinishEvent(now);
}

// Of an ended formation, if the call is of one that is remembered: it says why its executions failed.
Tenant* Exchange::TenantOf(const shm::SlotRequest& request) {
  const GroupId group(request.group_id);
  Tenant* ended = FindTenant(group, Formation(request.formation));
  return ended != nullptr ? ended : CurrentTenant(group);
}

void Exchange::Announce(const Submission& submission, const shm::SlotRequest& request,
                        absl::Time now) {
  Tenant* tenant = TenantOf(request);
  if (tenant == nullptr) {
    Refuse(submission, ForStranger(absl::AbortedError(absl::StrCat(
                                       "this worker does not serve group id ", request.group_id,
                                       " (the call carries epoch ", request.epoch, " formation ",
                                       request.formation, "); join the group again")),
                                   request));
    return;
  }
  const absl::Status problem = CheckPlace(request, submission.session, *tenant);
  if (!problem.ok()) {
    Refuse(submission, ForClient(problem, *tenant, request.rank, request.step));
    return;
  }
  if (request.step == shm::Step::kStreamAnnounce) {
    return AnnounceInTenant(*tenant, submission, CountStreamSubmission(*tenant, request), now);
  }
  AnnounceInTenant(*tenant, submission, request, now);
}

absl::Status Exchange::CheckRoom(SessionId session) const {
  if (sessions_.at(session).num_parts >= kMaxPartsPerSession) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the session has ", kMaxPartsPerSession,
                     " operations open, the most there may be; wait for some to end"));
  }
  if (operations_.size() >= options_.max_open_operations) {
    return absl::ResourceExhaustedError(absl::StrCat(
        options_.max_open_operations, " operations are open on this node, the most there may be"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Operation*> Exchange::FindOrCreate(Tenant& tenant, const OperationKey& key,
                                                  const Submission& submission,
                                                  const shm::SlotRequest& request, absl::Time now) {
  if (const auto found = tenant.by_key.find(key); found != tenant.by_key.end()) {
    return operations_.at(found->second).get();
  }
  if (tenant.draining) {
    return absl::FailedPreconditionError(
        "the group is draining and takes no new operations; join another group, or wait until it "
        "is open again");
  }
  if (absl::Status room = CheckRoom(submission.session); !room.ok()) return room;
  return &Create(tenant, key, NameOf(request), now);
}

Operation& Exchange::Create(Tenant& tenant, const OperationKey& key, std::string name,
                            absl::Time now) {
  while (record_slots_.contains(next_operation_ % shm::kMaxOperations)) ++next_operation_;
  const OperationId id(next_operation_++);
  record_slots_.insert(id.value % shm::kMaxOperations);

  auto operation = std::make_unique<Operation>();
  operation->id = id;
  operation->tenant = &tenant;
  operation->key = key;
  operation->name = std::move(name);
  operation->parts.resize(tenant.start.spec.num_ranks);
  for (uint32_t r = 0; r < operation->parts.size(); ++r) {
    if (!tenant.leads() && !tenant.local(r)) operation->parts[r].state = PartState::kDone;
  }
  operation->first_announce = now;
  operation->phase_since = now;
  tenant.by_key[key] = id;
  ++tenant.num_open;
  effects_.push_back(OpenRecord{.operation = id});
  const Deadlines& limits = tenant.start.spec.deadlines;
  SetDeadline(*operation, now + std::min(limits.warn_after, limits.absent));
  return *operations_.emplace(id, std::move(operation)).first->second;
}

void Exchange::AnnounceInTenant(Tenant& tenant, const Submission& submission,
                                const shm::SlotRequest& request, absl::Time now) {
  ProgramId program;
  static_assert(sizeof request.program == sizeof(ProgramId));
  std::memcpy(program.data(), request.program, program.size());
  const absl::StatusOr<Execution> execution =
      tenant.book.Enter(Rank(request.rank), program, request.has_name != 0, request.execution);
  // What failed before the formation ended keeps its own cause.
  const absl::Status over = execution.ok() ? tenant.ended : execution.status();
  if (!over.ok()) {
    Refuse(submission, ForClient(over, tenant, request.rank, request.step));
    return;
  }
  const OperationKey key = KeyOf(request, *execution);
  const absl::StatusOr<Operation*> found = FindOrCreate(tenant, key, submission, request, now);
  if (!found.ok()) {
    // The rank has given this execution up, so nobody may wait for it there.
    Refuse(submission, ForClient(found.status(), tenant, request.rank, request.step));
    const bool apart = tenant.aligning && request.step == shm::Step::kStreamAnnounce;
    if (tenant.peers.has_value()) return AskLeaderToFail(tenant, key, found.status(), apart);
    if (apart) return;
    std::set<Rank> may_come = AllRanks(tenant);
    if (key.named) may_come.erase(Rank(request.rank));
    FailExecution(tenant, key, found.status(), may_come);
    return;
  }
  Operation& operation = **found;
  Part& part = operation.parts[request.rank];
  if (part.state != PartState::kAbsent) {
    Refuse(submission, ForClient(absl::InvalidArgumentError(absl::StrCat(
                                     "rank ", request.rank, " has announced ", operation.Describe(),
                                     " before; a key may be used once")),
                                 tenant, request.rank, request.step));
    return;
  }
  effects_.push_back(LinkSubmission{.submission = submission, .operation = operation.id});
  part.state = PartState::kAnnounced;
  part.submission = submission;
  if (request.step == shm::Step::kStreamAnnounce) {
    part.site = submission.slot;
    sites_[{submission.session, submission.slot}].operation = operation.id;
  }
  ++sessions_.at(submission.session).num_parts;
  tenant.past->Began(operation, request.rank, CopyAnnouncement(request), now);

  const absl::Status problem = TakeAnnouncement(part, tenant, request);
  // What the others say only the leader hears; for messages and figures they say the same.
  for (uint32_t r = 0; !tenant.leads() && r < operation.parts.size(); ++r) {
    if (tenant.local(r)) continue;
    operation.parts[r].said = part.said;
    operation.parts[r].said.stage_bytes = 0;
  }
  if (!problem.ok() && !part.site.has_value()) {
    return FailWithExecution(operation, AtRank(problem, tenant, request));
  }
  if (!problem.ok()) part.problem = AtRank(problem, tenant, request);
  OneMoreAnnounced(operation, now);
}

void Exchange::OneMoreAnnounced(Operation& operation, absl::Time now) {
  Tenant& tenant = *operation.tenant;
  if (tenant.leads() && !operation.Any(PartState::kAbsent)) {
    AllAnnounced(operation, now);
  } else if (!tenant.leads() && (!operation.Any(PartState::kAbsent) || MayMeet(operation))) {
    TellAnnounced(operation, now);
  } else if (tenant.leads() && MayMeet(operation)) {
    Align(tenant);
  }
}

absl::Status Exchange::TakeAnnouncement(Part& part, const Tenant& tenant,
                                        const shm::SlotRequest& request) const {
  part.said = CopyAnnouncement(request);
  part.said.from_stream = request.step == shm::Step::kStreamAnnounce;
  absl::Status status = CheckAnnounce(request, tenant, staging_.arena_bytes(tenant.set));
  if (!status.ok() || request.step != shm::Step::kAnnounceStaged) return status;
  const EagerArea eager =
      tenant.may_send_eagerly() ? staging_.FindEagerArea(tenant.set) : EagerArea();
  status = CheckEagerBuffer(request, eager, staging_.eager_options());
  if (status.ok()) part.said.eager_buffer = static_cast<uint8_t>(request.op_id);
  return status;
}

void Exchange::AllAnnounced(Operation& operation, absl::Time now) {
  Tenant& tenant = *operation.tenant;
  if (MayMeet(operation)) EndAligning(operation);
  for (const Part& part : operation.parts) {
    if (part.problem.ok()) continue;
    const absl::Status problem = part.problem;  // A copy: the operation may end with it.
    return FailWithExecution(operation, problem);
  }
  if (absl::Status status = CheckAgreement(operation, tenant); !status.ok()) {
    EndGeneration(tenant, status);
    return;
  }
  if (absl::Status status = CheckOverflow(operation, tenant); !status.ok()) {
    FailWithExecution(operation, status);
    return;
  }
  uint64_t bytes = 0;
  bool is_eager = true;
  for (const Part& part : operation.parts) {
    bytes = std::max(bytes, BytesOf(part.said));
    is_eager = is_eager && part.said.eager_buffer.has_value();
  }
  if (is_eager) {
    DecideGood(operation, now);
    return;
  }
  if (const absl::Status fits = CheckStreamRegion(operation, bytes); !fits.ok()) {
    return FailWithExecution(operation, fits);
  }
  if (!operation.in_stream_region && !staging_.EverFits(tenant.set, bytes)) {
    FailWithExecution(
        operation,
        absl::ResourceExhaustedError(absl::StrCat(
            "the operation needs ", bytes, " bytes of staging on each of ", operation.parts.size(),
            " ranks, the node's pool has ", staging_.room_bytes(tenant.set),
            "; start epd with a larger staging pool, or send fewer tokens per call")));
    return;
  }
  if (tenant.peers.has_value()) {
    AskReserve(operation, bytes, now);
  } else {
    Enqueue(operation, bytes, {++clock_, options_.self}, now);
  }
}

// The operation that a publish or pulled means, or null after the use was refused.
Operation* Exchange::FindForSubmission(const Submission& submission,
                                       const shm::SlotRequest& request, PartState expected) {
  const auto found = operations_.find(OperationId(request.op_id));
  if (found == operations_.end()) {
    Refuse(submission, ForStranger(absl::AbortedError(absl::StrCat(
                                       "operation ", request.op_id,
                                       " is not open: it has ended, or an earlier worker ran it")),
                                   request));
    return nullptr;
  }
  Operation& operation = *found->second;
  const std::vector<RankHolder>& members = operation.tenant->start.members;
  if (request.rank >= members.size() || members[request.rank].session != submission.session) {
    Refuse(submission, ForStranger(absl::PermissionDeniedError(absl::StrCat(
                                       "operation ", request.op_id, " has no rank ", request.rank,
                                       " of session ", submission.session.value)),
                                   request));
    return nullptr;
  }
  if (operation.parts[request.rank].state != expected) {
    Refuse(submission, ForClient(absl::InvalidArgumentError(absl::StrCat(
                                     "operation ", request.op_id, " (", operation.Describe(),
                                     ") does not expect this step of rank ", request.rank, " now")),
                                 *operation.tenant, request.rank, request.step));
    return nullptr;
  }
  effects_.push_back(LinkSubmission{.submission = submission, .operation = operation.id});
  return &operation;
}

void Exchange::Publish(const Submission& submission, const shm::SlotRequest& request,
                       absl::Time now) {
  Operation* operation = FindForSubmission(submission, request, PartState::kCopying);
  if (operation == nullptr) return;
  Part& part = operation->parts[request.rank];
  part.state = PartState::kPublished;
  part.submission = submission;
  const absl::Status problem = CheckPublish(request, part, *operation->tenant);
  if (operation->phase == Phase::kFailed) {
    Answer(*operation, request.rank, shm::Step::kPublish, operation->cause);
    Finish(*operation, request.rank);
    CloseIfOver(*operation);
  } else if (!problem.ok()) {
    FailWithExecution(*operation, AtRank(problem, *operation->tenant, request));
  } else if (operation->tenant->peers.has_value()) {
    SendStage(*operation, request.rank);
    MaybePublished(*operation, now);
  } else if (!operation->Any(PartState::kCopying)) {
    if (operation->tenant->worker_moves(operation->parts[0].said.kind)) {
      StartMove(*operation, now);
    } else {
      DecideGood(*operation, now);
    }
  }
}

void Exchange::Pulled(const Submission& submission, const shm::SlotRequest& request) {
  Operation* operation = FindForSubmission(submission, request, PartState::kReading);
  if (operation == nullptr) return;
  operation->parts[request.rank].state = PartState::kPulled;
  operation->parts[request.rank].submission = submission;
  CloseIfOver(*operation);
}

}  // namespace epd
