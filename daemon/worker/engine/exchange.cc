// Long because each event has its entry here; what it does is in the parts.
#include "daemon/worker/engine/exchange.h"

#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "daemon/worker/engine/admission_queue.h"
#include "daemon/worker/engine/cause_text.h"
#include "daemon/worker/engine/deadline_watch.h"
#include "daemon/worker/engine/effects.h"
#include "daemon/worker/engine/failures.h"
#include "daemon/worker/engine/leader_protocol.h"
#include "daemon/worker/engine/operation_phases.h"
#include "daemon/worker/engine/operation_steps.h"
#include "daemon/worker/engine/operation_table.h"
#include "daemon/worker/engine/peer_messenger.h"
#include "daemon/worker/engine/rows_ahead.h"
#include "daemon/worker/engine/stream_sites.h"
#include "daemon/worker/engine/tenant_table.h"

namespace epd {
namespace {

absl::Status GoneCause(const Tenant& tenant, const std::vector<Rank>& ranks,
                       const absl::Status& cause) {
  return absl::Status(cause.ok() ? absl::StatusCode::kUnavailable : cause.code(),
                      absl::StrCat(NameRanks(tenant, ranks, "gone"), ": ", cause.message(),
                                   "; start the lost process again and join anew [EPD-1301]"));
}

// What a rank has staged cannot be sent.
absl::Status AtPublish(const Tenant& tenant, Rank rank, const absl::Status& cause) {
  return absl::Status(cause.code(),
                      absl::StrCat(NameRanks(tenant, {rank}, "publish"), ": ", cause.message()));
}

}  // namespace

// In the order in which they know each other.
struct Exchange::Parts {
  explicit Parts(const ExchangeOptions& options)
      : staging(options.staging_bytes, options.page_bytes, options.eager,
                options.device_staging_bytes),
        table(options.first_operation_id, options.max_open_operations, options.limits),
        queue(staging, options.limits),
        tenants(options.self, options.stream_region_bytes, staging, queue, event),
        messenger(options.self, event),
        traces({.parts_per_second = options.traced_per_second}),
        phases({options.hold_limit, options.limits.undecided}, {.table = table,
                                                                .sites = sites,
                                                                .queue = queue,
                                                                .tenants = tenants,
                                                                .staging = staging,
                                                                .figures = figures,
                                                                .traces = traces,
                                                                .event = event}),
        failures(table, phases, messenger, event),
        ahead({.table = table,
               .phases = phases,
               .staging = staging,
               .failures = failures,
               .messenger = messenger,
               .event = event}),
        leader({.table = table,
                .phases = phases,
                .queue = queue,
                .failures = failures,
                .messenger = messenger,
                .ahead = ahead,
                .event = event}),
        steps({.tenants = tenants,
               .table = table,
               .sites = sites,
               .phases = phases,
               .failures = failures,
               .leader = leader,
               .ahead = ahead,
               .queue = queue,
               .messenger = messenger,
               .staging = staging,
               .event = event}),
        watch(table, phases, queue, failures, leader, event) {}

  EngineEvent event;
  Staging staging;
  OperationTable table;
  StreamSites sites;
  AdmissionQueue queue;
  TenantTable tenants;
  PeerMessenger messenger;
  OperationFigures figures;
  OperationTraces traces;
  OperationPhases phases;
  Failures failures;
  RowsAhead ahead;
  LeaderProtocol leader;
  OperationSteps steps;
  DeadlineWatch watch;

  // A tenant of several workers one of which says something, else null.
  Tenant* FindWithPeers(GroupId group, Formation formation) const {
    Tenant* tenant = tenants.Find(group, formation);
    return tenant != nullptr && tenant->peers.has_value() ? tenant : nullptr;
  }
  // `end`: of one tenant. What is held back for none of them is refused with `cause`.
  void EndAll(const absl::Status& cause, absl::Time now, absl::FunctionRef<void(Tenant&)> end) {
    event.now = now;
    for (const auto& [unused, tenant] : tenants.all()) {
      end(*tenant);
      tenant->closed = true;
      tenants.ReleaseIfIdle(*tenant);
    }
    steps.RefuseHeld(cause);
  }
  // What ranks do without this worker is over before their staging goes.
  void AwaitDirectOf(Tenant& tenant) {
    if (!tenant.goes_direct || tenant.awaits_direct || !tenant.set) return;
    tenant.awaits_direct = true;
    event.Add(AwaitDirect{.group = tenant.start.group, .formation = tenant.start.formation});
  }
  // Until they are idle on all workers, what is new is let in: a stream that was refused something could not repeat it.
  void AwaitStreamsOf(Tenant& tenant) {
    tenant.streams_end = true;
    AwaitStreams effect{
        .group = tenant.start.group, .formation = tenant.start.formation, .sessions = {}};
    for (const SessionId session : tenant.sessions) {
      if (session) effect.sessions.push_back(session);
    }
    event.Add(std::move(effect));
  }
  void Granted(Operation& operation) {
    if (operation.tenant->peers.has_value()) {
      leader.TellGranted(operation);
    } else {
      phases.Admit(operation);
    }
  }
  void PumpQueue() {
    while (std::optional<AdmissionQueue::Grant> grant = queue.Next()) {
      Operation& operation = *grant->operation;
      if (grant->blocked) return leader.AskRevokes(operation.ticket);
      if (grant->commit.bytes == 0) {
        Granted(operation);
        continue;
      }
      operation.making_pages = true;
      event.Add(CommitPages{
          .operation = operation.id, .range = grant->commit, .trims = std::move(grant->trims)});
    }
  }
};

Exchange::Exchange(const ExchangeOptions& options) : parts_(std::make_unique<Parts>(options)) {}
Exchange::~Exchange() = default;

void Exchange::FinishEvent() {
  while (parts_->queue.changed() || parts_->sites.has_freed()) {
    if (parts_->queue.TakeChange()) parts_->PumpQueue();
    parts_->steps.TakeHeld();
  }
}

// ---- sessions and tenants ----

void Exchange::AddSession(SessionId session, uint32_t uid, uint32_t num_slots) {
  parts_->tenants.AddSession(session, {.uid = uid, .num_slots = num_slots});
}

void Exchange::SessionDead(SessionId session, const absl::Status& cause, bool process_alive,
                           absl::Time now) {
  parts_->event.now = now;
  const bool known = parts_->tenants.Knows(session);
  parts_->tenants.EndSession(session, process_alive);
  if (known) {
    parts_->table.ForgetSession(session);
    parts_->traces.ForgetSession(session);
    parts_->sites.ForgetSession(session);
    const std::vector<TenantTable::Place> places = parts_->tenants.PlacesOf(session);
    parts_->phases.EndPartsOf(places);
    for (const auto& [tenant, ranks] : places) {
      if (tenant->closed) continue;
      parts_->failures.EndFormation(*tenant, GoneCause(*tenant, ranks, cause));
    }
  }
  FinishEvent();
}

absl::Status Exchange::StartTenant(TenantStart start, absl::Time now) {
  parts_->event.now = now;
  if (absl::Status status = parts_->tenants.CheckStart(start); !status.ok()) return status;
  if (const Tenant* current = parts_->tenants.FindCurrent(start.group); current != nullptr) {
    EndTenant(start.group, current->start.formation, absl::AbortedError("the group was re-formed"),
              now);
  }
  if (absl::Status started = parts_->tenants.Start(std::move(start)); !started.ok()) return started;
  FinishEvent();
  return absl::OkStatus();
}

void Exchange::EndTenant(GroupId group, Formation formation, const absl::Status& cause,
                         absl::Time now) {
  parts_->event.now = now;
  Tenant* tenant = parts_->tenants.Find(group, formation);
  if (tenant == nullptr) return;
  parts_->failures.EndFormation(*tenant,
                                cause.ok() ? absl::AbortedError("the group has ended") : cause);
  tenant->closed = true;
  tenant->closed_at = now;
  parts_->AwaitDirectOf(*tenant);
  parts_->tenants.ReleaseIfIdle(*tenant);
  parts_->tenants.ForgetEnded();
  FinishEvent();
}

void Exchange::EndEverything(const absl::Status& cause, absl::Time now) {
  parts_->EndAll(cause, now,
                 [&](Tenant& tenant) { parts_->failures.EndFormationAtOnce(tenant, cause); });
  FinishEvent();
}

void Exchange::Stop(absl::string_view why, absl::Time now) {
  parts_->EndAll(WorkerStops(why), now,
                 [&](Tenant& tenant) { parts_->failures.EndWithWorker(tenant, why); });
  FinishEvent();
}

void Exchange::DrainTenant(GroupId group, Formation formation, absl::Time now, bool in_order) {
  parts_->event.now = now;
  if (Tenant* tenant = parts_->tenants.Find(group, formation); tenant != nullptr) {
    const bool first = !std::exchange(tenant->draining, true);
    if (first) tenant->drains_in_order = in_order;
    parts_->failures.HearRefusals(*tenant);
    parts_->failures.EndDirectOf(*tenant);
    parts_->AwaitDirectOf(*tenant);
    if (first && in_order && tenant->start.on_device()) parts_->AwaitStreamsOf(*tenant);
    parts_->tenants.ReleaseIfIdle(*tenant);
  } else {
    parts_->event.Add(ReportTenantDrained{.group = group, .formation = formation});
  }
  FinishEvent();
}

// ---- operations ----

void Exchange::Take(const Submission& submission, const shm::SlotRequest& request, absl::Time now,
                    bool met) {
  parts_->event.now = now;
  parts_->steps.Take(submission, request, met);
  FinishEvent();
}

size_t Exchange::NumParts(const shm::SlotRequest& request) const {
  const Tenant* tenant = shm::IsAnnounce(request.step) ? parts_->tenants.FindFor(request) : nullptr;
  return tenant == nullptr ? 1 : tenant->num_ranks();
}

void Exchange::StreamsIdle(GroupId group, Formation formation, absl::Time now) {
  parts_->event.now = now;
  Tenant* tenant = parts_->tenants.Find(group, formation);
  if (tenant == nullptr) return;
  parts_->leader.StreamsIdle(*tenant);
  parts_->tenants.ReleaseIfIdle(*tenant);
  FinishEvent();
}

void Exchange::DirectIdle(GroupId group, Formation formation, absl::Time now) {
  parts_->event.now = now;
  Tenant* tenant = parts_->tenants.Find(group, formation);
  if (tenant == nullptr || !std::exchange(tenant->awaits_direct, false)) return;
  parts_->tenants.ReleaseIfIdle(*tenant);
  parts_->tenants.ForgetEnded();
  FinishEvent();
}

void Exchange::NoteDirect(const DirectOutcome& outcome, absl::Time now) {
  Tenant* tenant = parts_->tenants.Find(outcome.group, outcome.formation);
  if (tenant == nullptr) return;
  CountDirect(outcome, *tenant, parts_->figures);
  parts_->traces.NoteDirect(outcome, *tenant, now);
}

void Exchange::SetWithheld(uint64_t bytes, absl::Time now) {
  parts_->event.now = now;
  parts_->staging.SetWithheld(bytes);
  parts_->queue.NoteChange();
  FinishEvent();
}

void Exchange::SetPageProblems(std::map<uint32_t, std::string> problems) {
  parts_->queue.SetPageProblems(std::move(problems));
}

void Exchange::SetShortage(uint64_t bytes, std::string why, absl::Time now) {
  parts_->event.now = now;
  parts_->staging.SetShortage(bytes, std::move(why));
  parts_->queue.NoteChange();
  FinishEvent();
}

void Exchange::PagesCommitted(OperationId id, const absl::Status& status, absl::Time now) {
  parts_->event.now = now;
  Operation* operation = parts_->table.Find(id);
  if (operation == nullptr || !std::exchange(operation->making_pages, false)) return;
  if (status.ok()) parts_->queue.PagesCommitted(*operation);
  if (!operation->undecided()) {
    parts_->phases.CloseIfOver(*operation);
  } else if (status.ok()) {
    parts_->Granted(*operation);
  } else {
    parts_->failures.FailWithExecution(*operation, status);
  }
  FinishEvent();
}

void Exchange::RowsMoved(OperationId id, const absl::Status& status, absl::Time now) {
  parts_->event.now = now;
  Operation* operation = parts_->table.Find(id);
  if (operation == nullptr || !operation->moving) return;
  parts_->steps.RowsMoved(*operation, status);
  FinishEvent();
}

void Exchange::RowsAheadSent(OperationId id, absl::Time now) {
  parts_->event.now = now;
  Operation* operation = parts_->table.Find(id);
  if (operation == nullptr) return;
  if (parts_->ahead.Sent(*operation)) parts_->steps.HandleAnnounced(*operation);
  FinishEvent();
}

void Exchange::RowsAheadRefused(OperationId id, Rank rank, const absl::Status& cause,
                                absl::Time now) {
  parts_->event.now = now;
  Operation* operation = parts_->table.Find(id);
  if (operation == nullptr || !operation->undecided()) return;
  parts_->failures.FailWithExecution(*operation, AtPublish(*operation->tenant, rank, cause));
  FinishEvent();
}

void Exchange::RowsPrepared(OperationId id, PreparedRows rows, absl::Time now) {
  parts_->event.now = now;
  const Operation* operation = parts_->table.Find(id);
  if (operation == nullptr || operation->phase != Phase::kMoving) return;
  parts_->leader.RowsPrepared(*operation, std::move(rows));
  FinishEvent();
}

// ---- several workers ----

void Exchange::Receive(Incarnation from, const PeerMessage& message, absl::Time now) {
  parts_->event.now = now;
  parts_->messenger.Hear(message);
  Tenant* tenant = parts_->FindWithPeers(message.group, message.formation);
  if (tenant != nullptr && tenant->peers->Serves(from)) {
    Operation* announced = parts_->leader.HandleMessage(*tenant, from, message);
    if (announced != nullptr) parts_->steps.HandleAnnounced(*announced);
    if (tenant->draining) parts_->tenants.ReleaseIfIdle(*tenant);
  } else if (message.step == LeaderStep::kRows) {
    parts_->event.Add(DropRows{NameRows(from, message)});
  }
  FinishEvent();
}

void Exchange::PeerLost(Incarnation peer, const absl::Status& cause, absl::Time now) {
  parts_->event.now = now;
  for (const auto& [unused, tenant] : parts_->tenants.all()) {
    if (tenant->gone() || !tenant->peers.has_value() || !tenant->peers->Serves(peer)) continue;
    parts_->failures.PeerLost(*tenant, peer, cause);
  }
  FinishEvent();
}

void Exchange::RowsLanded(const PeerOperation& name, Rank rank, absl::Time now) {
  parts_->event.now = now;
  const Tenant* tenant = parts_->FindWithPeers(name.group, name.formation);
  Operation* operation = tenant == nullptr ? nullptr : parts_->leader.Find(*tenant, name.number);
  if (operation == nullptr) return;
  parts_->leader.RowsLanded(*operation, rank);
  FinishEvent();
}

void Exchange::RowsRefused(const PeerOperation& name, Rank rank, const absl::Status& cause,
                           absl::Time now) {
  parts_->event.now = now;
  const Tenant* tenant = parts_->FindWithPeers(name.group, name.formation);
  Operation* operation = tenant == nullptr ? nullptr : parts_->leader.Find(*tenant, name.number);
  if (operation == nullptr || !operation->undecided()) return;
  parts_->failures.FailWithExecution(*operation, AtPublish(*tenant, rank, cause));
  FinishEvent();
}

// ---- time, effects, figures ----

void Exchange::Tick(absl::Time now) {
  parts_->event.now = now;
  parts_->watch.Tick();
  FinishEvent();
}

absl::Time Exchange::next_deadline() const { return parts_->table.next_deadline(); }

Effects Exchange::TakeEffects() { return std::exchange(parts_->event.effects, {}); }

ExchangeSnapshot Exchange::Snapshot(absl::Time now) const {
  ExchangeSnapshot snapshot =
      MakeSnapshot(parts_->table, parts_->tenants, parts_->queue, parts_->staging, now);
  snapshot.kinds = parts_->figures.kinds();
  return snapshot;
}

std::vector<ExchangeSnapshot::PastLine> Exchange::Past(GroupId group, size_t max_of_rank,
                                                       size_t max_lines, absl::Time now) const {
  const Tenant* tenant = parts_->tenants.FindCurrent(group);
  if (tenant == nullptr) return {};
  return ListPast(*tenant, parts_->table, max_of_rank, max_lines, now);
}

OperationTraces& Exchange::traces() { return parts_->traces; }

void Exchange::KeepTraces(absl::Time until) {
  OperationTraces& traces = parts_->traces;
  traces.KeepUntil(until);
  for (const auto& [id, operation] : parts_->table.all()) {
    for (uint32_t rank = 0; rank < operation->parts.size(); ++rank) {
      Part& part = operation->parts[rank];
      const bool is_open = part.state != PartState::kAbsent && part.state != PartState::kDone;
      if (!is_open || part.trace != OperationTraces::kNone || !operation->tenant->local(rank))
        continue;
      part.trace = traces.BeginOpen(*operation, rank, part.said, part.announced);
    }
  }
}

const Staging& Exchange::staging() const { return parts_->staging; }
size_t Exchange::num_open_operations() const { return parts_->table.all().size(); }

}  // namespace epd
