#include "daemon/worker/engine/operation_phases.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/worker/engine/cause_text.h"
#include "daemon/worker/engine/peer_messenger.h"
#include "proto/epd/v1/region_layout.h"

namespace epd {
namespace {

std::vector<int> LocalArenas(const Tenant& tenant) {
  std::vector<int> arenas = tenant.arena_of_rank;
  for (uint32_t r = 0; r < arenas.size(); ++r) {
    if (!tenant.local(r)) arenas[r] = -1;
  }
  return arenas;
}

}  // namespace

void OperationPhases::EnterPhase(Operation& operation, Phase phase) {
  if (phase != Phase::kFailed)
    parts_.figures.Leaves(operation, parts_.event.now - operation.phase_since);
  operation.phase = phase;
  operation.phase_since = parts_.event.now;
}

Operation& OperationPhases::Open(Tenant& tenant, const OperationKey& key, std::string name) {
  const absl::Time now = parts_.event.now;
  Operation& operation = parts_.table.Open(tenant, key, std::move(name), now);
  parts_.event.Add(OpenRecord{.operation = operation.id});
  const Deadlines& limits = tenant.start.spec.deadlines;
  parts_.table.SetDeadline(operation, now + std::min(limits.warn_after, limits.absent));
  return operation;
}

void OperationPhases::Queue(Operation& operation, uint64_t bytes, const Ticket& ticket) {
  EnterPhase(operation, Phase::kQueued);
  for (const Part& part : operation.parts) Reach(part, TracePoint::kQueued);
  parts_.table.SetDeadline(operation,
                           parts_.event.now + operation.tenant->start.spec.deadlines.undecided);
  parts_.queue.Add(operation, bytes, ticket);
}

void OperationPhases::Admit(Operation& operation) {
  EnterPhase(operation, Phase::kAdmitted);
  const Tenant& tenant = *operation.tenant;
  parts_.table.SetDeadline(operation,
                           parts_.event.now +
                               std::min(tenant.start.spec.deadlines.undecided, limits_.undecided) +
                               (tenant.leads() ? absl::ZeroDuration() : kLeaderFirst));
  for (uint32_t r = 0; r < operation.parts.size(); ++r) {
    if (operation.parts[r].state != PartState::kAnnounced) continue;
    operation.parts[r].state = PartState::kCopying;
    Reach(operation.parts[r], TracePoint::kAdmitted);
    if (tenant.local(r)) Answer(operation, r, shm::Step::kAnnounce, absl::OkStatus());
  }
}

void OperationPhases::StartMove(Operation& operation) {
  EnterPhase(operation, Phase::kMoving);
  operation.moving = true;
  const Tenant& tenant = *operation.tenant;
  const Announcement& said = operation.parts[0].said;  // All agree.
  MoveJob job{.kind = said.kind,
              .dtype = said.dtype,
              .has_weights = said.has_weights != 0,
              .top_k = said.top_k,
              .alignment = said.alignment,
              .row_bytes = said.row_bytes,
              .plan_id = said.plan_id,
              .parts = {}};
  for (uint32_t r = 0; r < operation.parts.size(); ++r) {
    const Announcement& part = operation.parts[r].said;
    const RegionView view = MakeView(operation, r);
    if (!tenant.local(r)) {
      job.parts.push_back(MovePart{.arena = tenant.arena_of_rank[r],
                                   .local = false,
                                   .stage_offset = view.offset,
                                   .stage_bytes = view.bytes});
      continue;
    }
    job.parts.push_back(MovePart{.arena = tenant.arena_of_rank[r],
                                 .num_tokens = part.num_tokens,
                                 .recv_capacity = part.recv_capacity,
                                 .stage_offset = view.offset,
                                 .stage_bytes = part.stage_bytes,
                                 .out_offset = view.out_offset,
                                 .out_bytes = view.out_bytes});
  }
  parts_.event.Add(MoveRows{.operation = operation.id,
                            .group = tenant.start.group,
                            .formation = tenant.start.formation,
                            .uid = tenant.uid,
                            .set = tenant.set,
                            .job = std::move(job)});
}

void OperationPhases::ReportPublished(Operation& operation) {
  operation.phase = Phase::kAdmitted;  // Since when it was admitted first.
  operation.peers.reported = true;
}

RegionView OperationPhases::MakeView(const Operation& operation, uint32_t rank) const {
  const Region& region = *operation.region;
  const Announcement& said = operation.parts[rank].said;
  return RegionView{.offset = region.offset,
                    .bytes = region.bytes,
                    .out_offset = region.offset + shm::OutOffset(said.stage_bytes),
                    .out_bytes = said.out_bytes,
                    .eager = operation.tenant->may_send_eagerly()
                                 ? parts_.staging.FindEagerArea(operation.tenant->set)
                                 : EagerArea()};
}

void OperationPhases::Answer(const Operation& operation, uint32_t rank, shm::Step step,
                             const absl::Status& status) {
  const Tenant& tenant = *operation.tenant;
  const Part& part = operation.parts[rank];
  AnswerSubmission answer{
      .submission = part.submission,
      .status = status,
      .operation = operation.id,
      .region = {},
      .plan_id = operation.peers.number != 0 ? operation.peers.number : operation.id.value};
  if (!status.ok()) {
    ++operation.tenant->counters.num_failed_calls;
    answer.status = ForClient(status, tenant, rank, step);
  } else if (operation.region.has_value()) {
    answer.region = MakeView(operation, rank);
  }
  const bool teaches = step == shm::Step::kAnnounce || step == shm::Step::kAnnounceStaged;
  if (status.ok() && teaches && tenant.may_go_direct() &&
      tenant.executions.Runs(operation.key.execution)) {
    operation.tenant->goes_direct = true;
    answer.direct_execution = operation.key.execution.number;
    answer.direct_set = tenant.set;
  }
  const bool prepares = part.said.kind == shm::Kind::kPrepare;
  if (part.site.has_value() && status.ok() && (prepares || !tenant.worker_executor())) {
    answer.plan_name = shm::PlanName{.group_id = tenant.start.group.value,
                                     .epoch = tenant.start.epoch.value,
                                     .plan_id = prepares ? answer.plan_id : part.said.plan_id};
  }
  parts_.sites.NoteCause(answer.submission, answer.status);
  parts_.event.Add(std::move(answer));
}

void OperationPhases::Refuse(const Submission& submission, const absl::Status& status) {
  parts_.sites.NoteCause(submission, status);
  parts_.event.Add(AnswerSubmission{
      .submission = submission, .status = status, .operation = {}, .region = {}, .plan_id = 0});
}

void OperationPhases::FinishPart(Operation& operation, uint32_t rank) {
  operation.tenant->past->Ended(operation, rank, operation.cause.code(), parts_.event.now);
  Part& part = operation.parts[rank];
  EndTrace(part, operation.cause.code());
  part.state = PartState::kDone;
  const SessionId session = operation.tenant->sessions[rank];
  if (part.site.has_value()) parts_.sites.Leave({session, *part.site});
  parts_.table.PartIsOver(session);
}

void OperationPhases::EndTrace(Part& part, absl::StatusCode code) {
  parts_.traces.End(std::exchange(part.trace, OperationTraces::kNone), code, parts_.event.now);
}

void OperationPhases::DecideGood(Operation& operation) {
  Tenant& tenant = *operation.tenant;
  EnterPhase(operation, Phase::kGood);
  parts_.table.SetDeadline(operation, parts_.event.now + limits_.decided);
  ++tenant.counters.num_good;
  parts_.figures.Decided(operation, absl::StatusCode::kOk);
  for (const Part& part : operation.parts) tenant.counters.bytes_moved += part.said.stage_bytes;
  const bool is_eager = !operation.region.has_value();
  if (is_eager) NameBuffers(operation);
  parts_.event.Add(DecideRecord{.operation = operation.id, .status = absl::OkStatus()});
  if (operation.parts[0].said.kind == shm::Kind::kPrepare) CountRoutesOf(operation);
  CloseWire(operation);
  for (uint32_t r = 0; r < operation.parts.size(); ++r) {
    if (!tenant.local(r)) operation.parts[r].state = PartState::kDone;
    if (operation.parts[r].state == PartState::kDone) continue;  // Or its session died meanwhile.
    operation.parts[r].state = PartState::kReading;
    Reach(operation.parts[r], TracePoint::kDecided);
    Answer(operation, r, is_eager ? shm::Step::kAnnounceStaged : shm::Step::kPublish,
           absl::OkStatus());
  }
  CloseIfOver(operation);
}

void OperationPhases::CountRoutesOf(const Operation& operation) {
  const Tenant& tenant = *operation.tenant;
  CountRoutes count{.group = tenant.start.group,
                    .formation = tenant.start.formation,
                    .uid = tenant.uid,
                    .set = tenant.set,
                    .offsets = StageOffsets(operation),
                    .arena_of_rank = LocalArenas(tenant),
                    .num_experts = tenant.start.spec.num_experts,
                    .alignment = operation.parts[0].said.alignment};
  if (!operation.parts[0].route_counts.empty()) {
    for (const Part& part : operation.parts) count.told.push_back(part.route_counts);
    count.plan_id = operation.id.value;
  }
  parts_.event.Add(std::move(count));
}

void OperationPhases::NameBuffers(const Operation& operation) {
  std::vector<uint8_t> eager;
  for (const Part& part : operation.parts) eager.push_back(*part.said.eager_buffer);
  for (uint32_t r = 0; r < operation.parts.size(); ++r) {
    if (!operation.tenant->local(r)) continue;
    parts_.event.Add(NameEagerBuffers{.submission = operation.parts[r].submission,
                                      .operation = operation.id,
                                      .eager_buffer_of_rank = eager});
  }
}

// By arena of the operation's set.
std::vector<uint64_t> OperationPhases::StageOffsets(const Operation& operation) const {
  const Tenant& tenant = *operation.tenant;
  const EagerArea eager = parts_.staging.FindEagerArea(tenant.set);
  std::vector<uint64_t> offsets(operation.parts.size());
  for (uint32_t r = 0; r < operation.parts.size(); ++r) {
    const auto arena = static_cast<size_t>(tenant.arena_of_rank[r]);
    offsets[arena] = operation.region.has_value()
                         ? operation.region->offset
                         : eager.offset + *operation.parts[r].said.eager_buffer *
                                              parts_.staging.eager_options().buffer_bytes;
  }
  return offsets;
}

void OperationPhases::CloseMet(Operation& operation) {
  for (Part& part : operation.parts) {
    if (part.state != PartState::kAnnounced) continue;
    parts_.event.Add(AnswerSubmission{.submission = part.submission,
                                      .status = absl::OkStatus(),
                                      .operation = operation.id,
                                      .region = {},
                                      .met = true});
    FinishPart(operation, static_cast<uint32_t>(&part - operation.parts.data()));
  }
  parts_.event.Add(CloseRecord{.operation = operation.id});
  Tenant& tenant = *operation.tenant;
  parts_.table.Close(operation);
  parts_.tenants.ReleaseIfIdle(tenant);
}

void OperationPhases::Fail(Operation& operation, const absl::Status& cause) {
  if (!operation.undecided()) return;
  Tenant& tenant = *operation.tenant;
  if (tenant.goes_direct) parts_.event.Add(EndDirect{.set = tenant.set});
  parts_.queue.Remove(operation);
  EnterPhase(operation, Phase::kFailed);
  operation.cause = cause;
  ++tenant.counters.num_failed;
  parts_.figures.Decided(operation, cause.code());
  parts_.table.GiveUpKey(operation);
  parts_.event.Add(DecideRecord{.operation = operation.id, .status = cause});
  if (operation.making_pages)
    parts_.event.Add(CancelPages{.operation = operation.id, .set = tenant.set});
  if (operation.moving && !tenant.by_communicator())
    parts_.event.Add(CancelMove{.operation = operation.id, .set = tenant.set});
  CloseWire(operation);
  for (uint32_t r = 0; r < operation.parts.size(); ++r) {
    if (!tenant.local(r)) operation.parts[r].state = PartState::kDone;
    const PartState state = operation.parts[r].state;
    if (state != PartState::kAnnounced && state != PartState::kPublished) continue;
    Answer(operation, r,
           state == PartState::kAnnounced ? shm::Step::kAnnounce : shm::Step::kPublish, cause);
    FinishPart(operation, r);
  }
  parts_.table.SetDeadline(operation, parts_.event.now + limits_.decided);
  CloseIfOver(operation);
}

void OperationPhases::CloseIfOver(Operation& operation) {
  if (operation.undecided() || operation.held()) return;
  for (uint32_t r = 0; r < operation.parts.size(); ++r) {
    if (operation.parts[r].state != PartState::kPulled) continue;
    Answer(operation, r, shm::Step::kPulled, absl::OkStatus());
    FinishPart(operation, r);
  }
  Tenant& tenant = *operation.tenant;
  if (tenant.peers.has_value()) tenant.peers->by_number.erase(operation.peers.number);
  parts_.figures.Leaves(operation, parts_.event.now - operation.phase_since);
  for (Part& part : operation.parts) EndTrace(part, operation.cause.code());
  parts_.queue.FreeRegion(operation);
  if (const auto landing = operation.peers.ahead.landing; landing.has_value()) {
    parts_.staging.FreeLanding(tenant.set, *landing);
  }
  parts_.event.Add(CloseRecord{.operation = operation.id});
  parts_.table.Close(operation);
  parts_.tenants.ReleaseIfIdle(tenant);
}

void OperationPhases::CloseWire(Operation& operation) {
  if (!std::exchange(operation.peers.wire_open, false)) return;
  if (!operation.tenant->by_communicator()) parts_.event.Add(epd::CloseWire{NameOf(operation)});
}

void OperationPhases::EndPartsOf(const std::vector<TenantTable::Place>& places) {
  std::vector<Operation*> touched;
  for (const TenantTable::Place& place : places) {
    for (Operation* operation : parts_.table.FindOpen(*place.tenant)) {
      bool takes_part = false;
      for (const Rank rank : place.ranks) {
        Part& part = operation->parts[rank.value];
        if (part.state == PartState::kAbsent) continue;
        place.tenant->past->Ended(*operation, rank.value, absl::StatusCode::kUnavailable,
                                  parts_.event.now);
        EndTrace(part, absl::StatusCode::kUnavailable);
        part.state = PartState::kDone;
        takes_part = true;
      }
      if (takes_part) touched.push_back(operation);
    }
  }
  for (Operation* operation : touched) CloseIfOver(*operation);
}

void OperationPhases::EvictHolders(Operation& operation) {
  parts_.table.SetDeadline(operation, absl::InfiniteFuture());
  const Tenant& tenant = *operation.tenant;
  for (Rank rank : operation.WaitingFor()) {
    parts_.event.Add(EvictSession{
        .session = tenant.sessions[rank.value],
        .cause = absl::DeadlineExceededError(absl::StrCat(
            "group=", Title(tenant.start.spec), " epoch=", tenant.start.epoch.value, " ",
            NameRanks(tenant, {rank}, "pulled"), ": holds the staging of ", operation.Describe(),
            " ", absl::FormatDuration(limits_.decided),
            " after the operation ended; the session ends so that others can use it"))});
  }
}

}  // namespace epd
