#include "daemon/worker/engine/operation_steps.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/worker/engine/agreement.h"
#include "daemon/worker/engine/cause_text.h"
#include "daemon/worker/engine/request_check.h"
#include "proto/epd/v1/operation_kind.h"
#include "proto/epd/v1/region_layout.h"

namespace epd {
namespace {

uint64_t NumStagingBytes(const Announcement& said) {
  return shm::OutOffset(said.stage_bytes) + said.out_bytes;
}

absl::Status AtRank(const absl::Status& problem, const Tenant& tenant,
                    const shm::SlotRequest& request) {
  const std::string place = NameRanks(tenant, {Rank(request.rank)}, PhaseName(request.step));
  return absl::Status(problem.code(), absl::StrCat(place, ": ", problem.message()));
}

}  // namespace

void OperationSteps::Take(const Submission& submission, const shm::SlotRequest& request, bool met) {
  switch (request.step) {
    case shm::Step::kAnnounce:
    case shm::Step::kAnnounceStaged:
      return Announce(submission, request, met);
    case shm::Step::kPublish:
      return Publish(submission, request, OperationId(request.operation.op_id));
    case shm::Step::kPulled:
      return Pulled(submission, request, OperationId(request.operation.op_id));
    case shm::Step::kStreamAnnounce:
      return StreamAnnounce(submission, request);
    case shm::Step::kStreamPublish:
    case shm::Step::kStreamPulled:
      break;
    default:
      return RefuseStranger(
          submission, request,
          absl::InvalidArgumentError(absl::StrCat("step is ", static_cast<uint32_t>(request.step),
                                                  ", expected 1 (announce), 2 (publish), 3 "
                                                  "(pulled) or 4 (announce staged), or 5 to 7 "
                                                  "from a stream")));
  }
  const uint32_t site = request.stream.announce_slot;
  // So that what is kept of sites is bounded by what the session was given.
  const uint32_t num_slots = parts_.tenants.NumSlots(submission.session);
  if (site >= num_slots) {
    return RefuseStranger(
        submission, request,
        absl::InvalidArgumentError(absl::StrCat("the step names slot ", site,
                                                " as its site's announce, expected "
                                                "less than ",
                                                num_slots)));
  }
  const StreamSiteKey key{submission.session, site};
  if (request.step == shm::Step::kStreamPublish) {
    StreamPublish(key, submission, request);
  } else {
    StreamPulled(key, submission, request);
  }
}

void OperationSteps::RefuseStranger(const Submission& submission, const shm::SlotRequest& request,
                                    const absl::Status& cause) {
  parts_.phases.Refuse(submission, ForStranger(cause, request));
}

// ---- announce ----

void OperationSteps::Announce(const Submission& submission, const shm::SlotRequest& request,
                              bool met) {
  Tenant* tenant = parts_.tenants.FindFor(request);
  if (tenant == nullptr) {
    return RefuseStranger(
        submission, request,
        absl::AbortedError(absl::StrCat("this worker does not serve group id ", request.group_id,
                                        " (the call carries epoch ", request.epoch, " formation ",
                                        request.formation, "); join the group again")));
  }
  if (const absl::Status problem = CheckPlace(request, submission.session, *tenant);
      !problem.ok()) {
    return parts_.phases.Refuse(submission,
                                ForClient(problem, *tenant, request.rank, request.step));
  }
  if (request.step == shm::Step::kStreamAnnounce) {
    const shm::SlotRequest counted = tenant->streams.Count(request);
    return AnnounceInTenant(*tenant, submission, ReportFault(counted, tenant->start.spec));
  }
  AnnounceInTenant(*tenant, submission, request, met);
}

absl::StatusOr<Operation*> OperationSteps::FindOrOpen(Tenant& tenant, const OperationKey& key,
                                                      const Submission& submission,
                                                      const shm::SlotRequest& request) {
  if (Operation* found = parts_.table.Find(tenant, key); found != nullptr) return found;
  const bool goes_on = tenant.streams_end && request.step == shm::Step::kStreamAnnounce;
  if (tenant.draining && !goes_on) return GroupDrains(tenant);
  if (absl::Status room = parts_.table.CheckRoomFor(submission.session); !room.ok()) return room;
  if (absl::Status room = parts_.table.CheckRoom(tenant); !room.ok()) return room;
  return &parts_.phases.Open(tenant, key, NameOf(request));
}

void OperationSteps::BeginPart(Tenant& tenant, Operation& operation, const Submission& submission,
                               const shm::SlotRequest& request) {
  Part& part = operation.parts[request.rank];
  parts_.event.Add(LinkSubmission{.submission = submission, .operation = operation.id});
  part.state = PartState::kAnnounced;
  part.announced = parts_.event.now;
  part.submission = submission;
  if (request.step == shm::Step::kStreamAnnounce) {
    part.site = submission.slot;
    parts_.sites.Join({submission.session, submission.slot}, operation.id);
  }
  parts_.table.CountPart(submission.session);
  const Announcement said = CopyAnnouncement(request);
  tenant.past->Began(operation, request.rank, said, parts_.event.now);
  part.trace = parts_.phases.BeginTrace(operation, request.rank, said);
}

void OperationSteps::AnnounceInTenant(Tenant& tenant, const Submission& submission,
                                      const shm::SlotRequest& request, bool met) {
  const bool from_stream = request.step == shm::Step::kStreamAnnounce;
  const auto refuse = [&](const absl::Status& cause) {
    ++tenant.counters.num_failed_calls;
    parts_.phases.Refuse(submission, ForClient(cause, tenant, request.rank, request.step));
  };
  ProgramId program;
  static_assert(sizeof request.program == sizeof(ProgramId));
  std::memcpy(program.data(), request.program, program.size());
  // What failed before the formation ended keeps its own cause, which the leader, if it is another worker, has yet to tell.
  const bool waits = !tenant.ended.ok() && !tenant.leads() && !tenant.peers->leader_spoke;
  // A formation that is gone learns of no program any more.
  if (tenant.gone() && !waits && !tenant.executions.Knows(program)) return refuse(tenant.ended);
  const absl::StatusOr<Execution> execution = tenant.executions.Enter(
      Rank(request.rank), program, request.has_name != 0, request.execution);
  const absl::Status over = execution.ok() && !waits ? tenant.ended : execution.status();
  if (!over.ok()) return refuse(over);
  const OperationKey key{.execution = *execution,
                         .ordinal = request.ordinal,
                         .occurrence = request.occurrence,
                         .named = request.has_name != 0};
  if (met) return Meet(tenant, key, submission);
  const absl::StatusOr<Operation*> found = FindOrOpen(tenant, key, submission, request);
  if (!found.ok()) {
    parts_.failures.EndDirectOf(tenant);
    // The rank has given this execution up, so nobody may wait for it there.
    refuse(found.status());
    return parts_.failures.FailCall(tenant, key, Rank(request.rank), found.status(),
                                    from_stream && tenant.streams.synchronising());
  }
  Operation& operation = **found;
  Part& part = operation.parts[request.rank];
  if (part.state != PartState::kAbsent) {
    return refuse(absl::InvalidArgumentError(absl::StrCat("rank ", request.rank, " has announced ",
                                                          operation.Describe(),
                                                          " before; a key may be used once")));
  }
  BeginPart(tenant, operation, submission, request);
  if (waits) return parts_.table.SetDeadline(operation, parts_.event.now + kLeaderWord);

  const absl::Status problem = TakeAnnouncement(part, tenant, request);
  // What the others say only the leader hears; for messages and figures they say the same.
  for (uint32_t r = 0; !tenant.leads() && r < operation.parts.size(); ++r) {
    if (tenant.local(r)) continue;
    operation.parts[r].said = part.said;
    operation.parts[r].said.stage_bytes = 0;
  }
  if (!problem.ok() && !part.site.has_value()) {
    return parts_.failures.FailWithExecution(operation, AtRank(problem, tenant, request));
  }
  if (!problem.ok()) part.problem = AtRank(problem, tenant, request);
  HandleAnnounced(operation);
}

// The ranks that go on by themselves will not announce.
void OperationSteps::Meet(Tenant& tenant, const OperationKey& key, const Submission& submission) {
  parts_.event.Add(AnswerSubmission{.submission = submission,
                                    .status = absl::OkStatus(),
                                    .operation = {},
                                    .region = {},
                                    .met = true});
  Operation* waits = parts_.table.Find(tenant, key);
  if (waits != nullptr && waits->phase == Phase::kGathering) parts_.phases.CloseMet(*waits);
}

absl::Status OperationSteps::TakeAnnouncement(Part& part, const Tenant& tenant,
                                              const shm::SlotRequest& request) const {
  const Staging& staging = parts_.staging;
  part.said = CopyAnnouncement(request);
  part.said.from_stream = request.step == shm::Step::kStreamAnnounce;
  absl::Status status = CheckAnnounce(request, tenant, staging.arena_bytes(tenant.set));
  if (!status.ok() || request.step != shm::Step::kAnnounceStaged) return status;
  const EagerArea eager =
      tenant.may_send_eagerly() ? staging.FindEagerArea(tenant.set) : EagerArea();
  status = CheckEagerBuffer(request, eager, staging.eager_options());
  if (status.ok()) part.said.eager_buffer = static_cast<uint8_t>(request.announce.eager_buffer);
  return status;
}

void OperationSteps::HandleAnnounced(Operation& operation) {
  if (parts_.ahead.Sends(operation)) return;  // And goes on when they are under way.
  const bool all = !operation.Any(PartState::kAbsent);
  if (!operation.tenant->leads()) {
    if (all || IsUnsynchronised(operation)) parts_.leader.TellAnnounced(operation);
    parts_.ahead.TellLanded(operation);
  } else if (all) {
    HandleAllAnnounced(operation);
  } else if (IsUnsynchronised(operation)) {
    parts_.failures.SynchroniseStreams(*operation.tenant);
  }
}

void OperationSteps::HandleAllAnnounced(Operation& operation) {
  Tenant& tenant = *operation.tenant;
  Failures& failures = parts_.failures;
  if (IsUnsynchronised(operation)) failures.NoteSynchronised(operation);
  for (const Part& part : operation.parts) {
    if (part.problem.ok()) continue;
    const absl::Status problem = part.problem;  // A copy: the operation may end with it.
    return failures.FailWithExecution(operation, problem);
  }
  if (absl::Status status = CheckAgreement(operation, tenant); !status.ok()) {
    return failures.EndGeneration(tenant, status);
  }
  if (absl::Status status = CheckOverflow(operation, tenant); !status.ok()) {
    return failures.FailWithExecution(operation, status);
  }
  uint64_t bytes = 0;
  bool is_eager = true;
  for (const Part& part : operation.parts) {
    bytes = std::max(bytes, NumStagingBytes(part.said));
    is_eager = is_eager && part.said.eager_buffer.has_value();
  }
  if (is_eager && !tenant.peers.has_value()) return parts_.phases.DecideGood(operation);
  if (is_eager && operation.peers.ahead.sent) return parts_.ahead.Decide(operation);
  if (const absl::Status fits = parts_.queue.CheckFits(operation, bytes, "the node's pool");
      !fits.ok()) {
    return failures.FailWithExecution(operation, fits);
  }
  if (tenant.peers.has_value()) {
    parts_.leader.AskReserve(operation, bytes);
  } else {
    parts_.phases.Queue(operation, bytes, parts_.messenger.DrawTicket());
  }
}

// ---- publish, pulled ----

// The operation that a publish or pulled means, or null after the submission was refused.
Operation* OperationSteps::FindForSubmission(const Submission& submission,
                                             const shm::SlotRequest& request, OperationId id,
                                             PartState expected) {
  Operation* operation = parts_.table.Find(id);
  if (operation == nullptr) {
    RefuseStranger(
        submission, request,
        absl::AbortedError(absl::StrCat(
            "operation ", id.value, " is not open: it has ended, or an earlier worker ran it")));
    return nullptr;
  }
  const std::vector<SessionId>& sessions = operation->tenant->sessions;
  if (request.rank >= sessions.size() || sessions[request.rank] != submission.session) {
    RefuseStranger(submission, request,
                   absl::PermissionDeniedError(absl::StrCat("operation ", id.value, " has no rank ",
                                                            request.rank, " of session ",
                                                            submission.session.value)));
    return nullptr;
  }
  // A call in a stream goes on with a stream's steps, and what they carry.
  const Part& part = operation->parts[request.rank];
  if (part.state != expected || part.site.has_value() != IsStreamStep(request.step)) {
    const absl::Status unexpected = absl::InvalidArgumentError(
        absl::StrCat("operation ", id.value, " (", operation->Describe(),
                     ") does not expect this step of rank ", request.rank, " now"));
    parts_.phases.Refuse(submission,
                         ForClient(unexpected, *operation->tenant, request.rank, request.step));
    return nullptr;
  }
  parts_.event.Add(LinkSubmission{.submission = submission, .operation = operation->id});
  return operation;
}

void OperationSteps::Publish(const Submission& submission, const shm::SlotRequest& request,
                             OperationId id) {
  Operation* operation = FindForSubmission(submission, request, id, PartState::kCopying);
  if (operation == nullptr) return;
  const Tenant& tenant = *operation->tenant;
  Part& part = operation->parts[request.rank];
  part.state = PartState::kPublished;
  parts_.phases.Reach(part, TracePoint::kPublished);
  part.submission = submission;
  const absl::Status problem = CheckPublish(request, part, tenant);
  part.route_counts = RouteCountsOf(request, part, tenant);
  if (operation->phase == Phase::kFailed) {
    parts_.phases.Answer(*operation, request.rank, shm::Step::kPublish, operation->cause);
    parts_.phases.FinishPart(*operation, request.rank);
    parts_.phases.CloseIfOver(*operation);
  } else if (!problem.ok()) {
    parts_.failures.FailWithExecution(*operation, AtRank(problem, tenant, request));
  } else if (tenant.peers.has_value()) {
    parts_.leader.SendStage(*operation, request.rank);
    parts_.leader.MaybePublished(*operation);
  } else if (!operation->Any(PartState::kCopying)) {
    if (tenant.worker_executor()) return parts_.phases.StartMove(*operation);
    parts_.phases.DecideGood(*operation);
  }
}

void OperationSteps::RowsMoved(Operation& operation, const absl::Status& status) {
  operation.moving = false;
  if (operation.phase == Phase::kFailed) {
    parts_.phases.CloseIfOver(operation);
  } else if (!status.ok()) {
    parts_.failures.FailWithExecution(operation, status);
  } else if (operation.tenant->peers.has_value()) {
    parts_.leader.TellPublished(operation);
  } else {
    parts_.phases.DecideGood(operation);
  }
}

void OperationSteps::Pulled(const Submission& submission, const shm::SlotRequest& request,
                            OperationId id) {
  Operation* operation = FindForSubmission(submission, request, id, PartState::kReading);
  if (operation == nullptr) return;
  operation->parts[request.rank].state = PartState::kPulled;
  parts_.phases.Reach(operation->parts[request.rank], TracePoint::kPulled);
  operation->parts[request.rank].submission = submission;
  parts_.phases.CloseIfOver(*operation);
}

// ---- call sites in a GPU's stream ----

void OperationSteps::StreamAnnounce(const Submission& submission, const shm::SlotRequest& request) {
  const StreamSites::Announced announced = parts_.sites.TakeAnnounce(submission, request);
  if (announced.begins) return Announce(submission, request);
  if (!announced.written_over.has_value()) return;
  const StreamSites::Held& held = *announced.written_over;
  RefuseStranger(held.submission, held.request,
                 absl::DataLossError("the op slot was written over"));
}

void OperationSteps::StreamPublish(const StreamSiteKey& key, const Submission& submission,
                                   const shm::SlotRequest& request) {
  const StreamSites::Published published = parts_.sites.TakePublish(key);
  if (published.operation) return Publish(submission, request, published.operation);
  const bool repeats = !published.cause.ok();
  const absl::Status status =
      repeats ? published.cause
              : ForStranger(absl::AbortedError("an earlier worker ran the operation of this step"),
                            request);
  parts_.event.Add(AnswerSubmission{.submission = submission,
                                    .status = status,
                                    .operation = {},
                                    .region = {},
                                    .plan_id = 0,
                                    .plan_name = {},
                                    .repeats = repeats});
}

// Nobody waits for the answer. One that belongs to no good call, as of a failed one or of one that an
// earlier worker answered, ends nothing but itself.
void OperationSteps::StreamPulled(const StreamSiteKey& key, const Submission& submission,
                                  const shm::SlotRequest& request) {
  const std::optional<OperationId> expected = parts_.sites.ExpectsPulled(key);
  const Operation* operation = expected.has_value() ? parts_.table.Find(*expected) : nullptr;
  const bool reads = operation != nullptr && request.rank < operation->parts.size() &&
                     operation->parts[request.rank].site == key.second &&
                     operation->parts[request.rank].state == PartState::kReading;
  if (reads) {
    parts_.sites.TakePulled(key);
    return Pulled(submission, request, *expected);
  }
  parts_.phases.Refuse(submission, absl::OkStatus());
  if (expected.has_value() && !*expected) parts_.sites.TakePulled(key);
}

void OperationSteps::TakeHeld() {
  for (const StreamSites::Held& held : parts_.sites.TakeHeld()) {
    Announce(held.submission, held.request);
  }
}

void OperationSteps::RefuseHeld(const absl::Status& cause) {
  for (const StreamSites::Held& held : parts_.sites.TakeAllHeld()) {
    RefuseStranger(held.submission, held.request, cause);
  }
}

}  // namespace epd
