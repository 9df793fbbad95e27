// Long because there are so many effects; each is a few lines.
#include "daemon/worker/shell/effect_performer.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "daemon/core/nccl_ep_limits.h"
#include "daemon/shared_memory/page_guard.h"
#include "daemon/worker/shell/control_codec.h"
#include "daemon/worker/shell/membership.h"
#include "proto/epd/v1/text.h"
#include "proto/failpoint/failpoint.h"

namespace epd {
namespace {

// Of a line for epd's log: dozens of ranks with the names of their clients.
constexpr size_t kLogBytes = 32 << 10;

// The refusal of a group of which a worker has more than one rank.
absl::Status SeveralRanksOnOneGpu(const GroupSpec& spec) {
  return absl::FailedPreconditionError(absl::StrCat(
      "group=", Title(spec), ": a worker of the group has several of its ", spec.num_ranks,
      " ranks, but with backend=", spec.backend, " ", spec.traits().library,
      "'s limit is one rank per GPU, and two GPUs at least; place one rank on each GPU, or ask for "
      "backend=",
      spec.traits().served_by));
}

std::vector<NodeId> NodesOf(const TenantStart& start) {
  std::vector<NodeId> nodes;
  for (const RankHolder& member : start.members) nodes.push_back(member.node);
  return nodes;
}

}  // namespace

// The arenas go with this object.
EffectPerformer::~EffectPerformer() {
  for (const std::unique_ptr<Backend>& backend : backends_) backend->Rest();
}

// Some effects are answered at once (pages, rows), and the answers have effects of their own.
void EffectPerformer::RunAll(absl::Time now) {
  now_ = now;
  if (wire_ != nullptr) wire_->Cork();
  for (Effects effects = exchange_.TakeEffects(); !effects.empty();
       effects = exchange_.TakeEffects()) {
    for (const Effect& effect : effects) {
      std::visit([this](const auto& one) { Run(one); }, effect);
    }
  }
  if (wire_ != nullptr) wire_->Flush();
}

void EffectPerformer::Hear(PeerSaid said, absl::Time now) {
  if (said.rows.has_value()) {
    wire_->Hold(NameRows(said.peer, said.message), *std::move(said.rows));
  }
  exchange_.Receive(said.peer, said.message, now);
}

void EffectPerformer::RunRecords() {
  for (const Effect& effect : exchange_.TakeEffects()) {
    if (const auto* decide = std::get_if<DecideRecord>(&effect)) Run(*decide);
  }
}

bool EffectPerformer::busy() const {
  return std::any_of(backends_.begin(), backends_.end(),
                     [](const auto& backend) { return backend->busy(); });
}

void EffectPerformer::PollBackends(absl::Time now) {
  now_ = now;
  for (const std::unique_ptr<Backend>& backend : backends_) TakeMoved(*backend);
  for (const ReportTenantReady& effect : std::exchange(not_ready_, {})) Run(effect);
  RunAll(now);
}

void EffectPerformer::TakeMoved(Backend& backend) {
  absl::StatusOr<std::vector<MovedRows>> moved = backend.Poll(now_);
  if (EPD_FAILPOINT_FAILS("worker.device.async_error"))
    moved = absl::InternalError("NCCL: unhandled system error");
  if (!moved.ok()) {
    device_lost_ = true;
    if (status_.ok()) status_ = moved.status();
    return;
  }
  EndSetsWithoutPages(now_);
  MemberMoves* members = backend.member_moves();
  std::vector<PreparedMove> prepared =
      members == nullptr ? std::vector<PreparedMove>() : members->TakePrepared();
  if (members != nullptr) SendForNeighbours(*members);
  for (PreparedMove& one : prepared) {
    exchange_.RowsPrepared(OperationId(one.id), {one.digest, std::move(one.tokens_to)}, now_);
  }
  for (const MovedRows& one : *moved) {
    exchange_.RowsMoved(OperationId(one.id), one.status, now_);
  }
}

void EffectPerformer::SendForNeighbours(MemberMoves& members) {
  for (const NeighbourMessage& one : members.TakeForNeighbours()) {
    v1::FromWorker message;
    *message.mutable_neighbour() = NeighbourToProto(one);
    Send(message, one.fd.valid() ? std::vector<int>{one.fd.get()} : std::vector<int>{});
  }
  for (const std::string& note : members.TakeNotes()) Log(LogLine{Severity::kInfo, note});
}

Backend& EffectPerformer::BackendFor(const std::string& asked) const {
  const absl::StatusOr<Backend*> found = FindServing(backends_, asked);
  return found.ok() ? **found : *backends_.front();
}

void EffectPerformer::Send(const v1::FromWorker& message, const std::vector<int>& fds) {
  const absl::Status sent = epd_.Send(message, fds);
  if (absl::IsInvalidArgument(sent)) {
    return Run(LogLine{Severity::kError,
                       absl::StrCat("left out: an answer to epd of kind ",
                                    static_cast<int>(message.body_case()), ": ", sent.message())});
  }
  status_.Update(sent);
}

void EffectPerformer::Run(const LinkSubmission& effect) {
  const auto session = sessions_.find(effect.submission.session);
  if (session != sessions_.end()) session->second.Link(effect);
}

void EffectPerformer::Run(const NameEagerBuffers& effect) {
  const auto session = sessions_.find(effect.submission.session);
  if (session != sessions_.end()) session->second.Tell(effect);
}

void EffectPerformer::Run(const AnswerSubmission& effect) {
  const auto session = sessions_.find(effect.submission.session);
  if (session == sessions_.end()) return;
  if (wire_ != nullptr) wire_->Flush();  // Who is woken may take the core.
  if (!effect.direct_execution.has_value()) return session->second.Answer(effect);
  AnswerSubmission answer = effect;
  answer.direct_generation = direct_.Generation(effect.direct_set);
  session->second.Answer(answer);
}

void EffectPerformer::Run(const DropArenas& effect) {
  direct_.Drop(effect.set, now_, NoteAt(now_));
  arenas_.Drop(effect.set);
}

void EffectPerformer::Take(const Submission& submission, const shm::SlotRequest& request,
                           absl::Time now) {
  const bool announces =
      request.step == shm::Step::kAnnounce || request.step == shm::Step::kAnnounceStaged;
  if (!announces) return exchange_.Take(submission, request, now);
  direct_.TakeIfMany(request, now, NoteAt(now));
  exchange_.Take(submission, request, now, direct_.HasMet(request));
}

void EffectPerformer::TakeDirect(absl::Time now) { direct_.TakeAll(now, NoteAt(now)); }

void EffectPerformer::TakeDueDirect(absl::Time now) { direct_.TakeDue(now, NoteAt(now)); }

// Clients stamp their records by the clock.
void EffectPerformer::Note(DirectOutcome outcome, absl::Time now) {
  outcome.published_at = time_.FromClock(outcome.published_at);
  outcome.ended_at = time_.FromClock(outcome.ended_at);
  exchange_.NoteDirect(outcome, now);
  const auto tenant = tenants_.find({outcome.group, outcome.formation});
  if (tenant == tenants_.end()) return;
  RouteCounter::Count(outcome, tenant->second.move.spec, tenant->second.routes);
}

void EffectPerformer::PollDirect(absl::Time now) {
  direct_.Poll(
      now, [this](SessionId session) { return sessions_.contains(session); },
      [&](GroupId group, Formation formation) { exchange_.DirectIdle(group, formation, now); });
  RunAll(now);
}

void EffectPerformer::PollStreams(absl::Time now) {
  std::vector<AwaitStreams> idle;
  std::erase_if(draining_streams_, [&](const AwaitStreams& waits) {
    const bool busy =
        std::any_of(waits.sessions.begin(), waits.sessions.end(), [&](SessionId session) {
          const auto found = sessions_.find(session);
          return found != sessions_.end() && found->second.has_streams_of(waits.group);
        });
    if (!busy) idle.push_back(waits);
    return !busy;
  });
  for (const AwaitStreams& waits : idle) exchange_.StreamsIdle(waits.group, waits.formation, now);
  RunAll(now);
}

void EffectPerformer::Run(const CommitPages& effect) {
  EPD_FAILPOINT("worker.pages.commit");
  const bool is_first = !arenas_.has_work();
  if (!arenas_.Commit(effect)) {
    return exchange_.PagesCommitted(
        effect.operation, absl::InternalError("the arenas of the operation are gone"), now_);
  }
  if (is_first) DoArenaWork();
}

void EffectPerformer::Run(const CancelPages& effect) {
  const std::optional<PageWork::Made> cancelled = arenas_.Cancel(effect);
  if (cancelled.has_value())
    exchange_.PagesCommitted(cancelled->operation, cancelled->status, now_);
}

void EffectPerformer::WorkOnArenas(absl::Time now) {
  now_ = now;
  DoArenaWork();
  for (const ReportTenantReady& effect : std::exchange(not_ready_, {})) Run(effect);
  RunAll(now);
}

void EffectPerformer::DoArenaWork() {
  for (const PageWork::Made& made : arenas_.Work(now_))
    exchange_.PagesCommitted(made.operation, made.status, now_);
  for (const std::string& warning : arenas_.TakeWarnings(now_))
    Run(LogLine{Severity::kWarning, warning});
  if (std::optional<std::map<uint32_t, std::string>> problems = arenas_.TakeProblems();
      problems.has_value())
    exchange_.SetPageProblems(*std::move(problems));
  const uint64_t late = arenas_.LateBytes(now_);
  if (std::exchange(late_bytes_, late) != late) exchange_.SetWithheld(late, now_);
  const MemoryWatch& memory = arenas_.memory();
  if (std::exchange(short_bytes_, memory.short_bytes()) != memory.short_bytes())
    exchange_.SetShortage(memory.short_bytes(), memory.why(), now_);
}

void EffectPerformer::TickArenas(absl::Time now) {
  now_ = now;
  arenas_.Tick(now);
  DoArenaWork();
}

bool EffectPerformer::EndSetsWithoutPages(absl::Time now) {
  const std::vector<ArenaSetId> without = arenas_.TakeWithoutPages();
  if (without.empty()) return false;
  const absl::Status cause = absl::ResourceExhaustedError(
      "pages of its staging are gone, and the node has no memory for others: a process of the "
      "group gave them back, or the kernel took them; free memory, or raise vm.overcommit_ratio "
      "where vm.overcommit_memory is 2");
  std::set<SessionId> sessions;
  for (ArenaSetId set : without) {
    for (SessionId session : exchange_.staging().SessionsOf(set)) sessions.insert(session);
  }
  for (SessionId session : sessions) {
    exchange_.SessionDead(session, cause, /*process_alive=*/true, now);
    Run(EvictSession{.session = session, .cause = cause});
  }
  return true;
}

void EffectPerformer::Run(const CreateArenas& effect) {
  arenas_.Create(effect, BackendFor(effect.backend), now_);
  DoArenaWork();
}

void EffectPerformer::Run(const ReportTenantReady& effect) {
  v1::FromWorker message;
  v1::TenantReady& ready = *message.mutable_tenant_ready();
  ready.set_group_id(effect.group.value);
  ready.set_formation(effect.formation.value);
  ready.set_stream_region_offset(effect.stream_region_offset);
  ready.set_stream_region_bytes(effect.stream_region_bytes);
  std::vector<int> fds;
  absl::Status status;
  if (effect.set) {
    status = arenas_.Ready(effect.set);
    if (absl::IsNotFound(status)) return;  // It ended before its communicator was entered.
    if (status.ok()) status = Entered(effect);
    if (absl::IsUnavailable(status)) return not_ready_.push_back(effect);
  }
  if (ArenaSet* const set = arenas_.Find(effect.set); status.ok() && set != nullptr) {
    status = PutArenas(*set, effect.ranks, ready, fds);
    const auto tenant = tenants_.find({effect.group, effect.formation});
    if (status.ok() && tenant != tenants_.end())
      ready.set_direct(
          direct_.Add(effect, arenas_.UidOf(effect.set), tenant->second.sessions, *set));
  }
  if (status.ok()) {
    EPD_FAILPOINT("worker.tenant.ready");
    const absl::Status sent = epd_.Send(message, fds);
    if (!absl::IsInvalidArgument(sent)) return status_.Update(sent);
    status = absl::ResourceExhaustedError(sent.message());
  }
  ready.clear_arenas();
  *ready.mutable_status() = ToProto(status);
  Send(message);
}

void EffectPerformer::Run(const ReportTenantDrained& effect) {
  v1::FromWorker message;
  message.mutable_tenant_drained()->set_group_id(effect.group.value);
  message.mutable_tenant_drained()->set_formation(effect.formation.value);
  EPD_FAILPOINT_SEND("worker.drained.send", Send(message));
}

void EffectPerformer::Run(const MoveRows& effect) {
  ArenaSet* const set = arenas_.Find(effect.set);
  const auto tenant = tenants_.find({effect.group, effect.formation});
  if (set == nullptr || tenant == tenants_.end()) {
    return exchange_.RowsMoved(effect.operation,
                               absl::InternalError("the arenas of the operation are gone"), now_);
  }
  EPD_FAILPOINT("worker.rows.move");
  tenant->second.move.uid = effect.uid;
  Backend& backend = *arenas_.FindBackend(effect.set);
  const TouchedUser::Scope touch = Touch(effect.set);
  backend.StartMove(effect.operation.value, *set, tenant->second.move, effect.job, now_);
  TakeMoved(backend);  // A CPU may have moved them already.
}

void EffectPerformer::Run(const TakeTurn& effect) {
  Backend* const backend = arenas_.FindBackend(effect.set);
  if (backend == nullptr || backend->member_moves() == nullptr) return;
  backend->member_moves()->Issue({.id = effect.operation.value,
                                  .place = effect.place,
                                  .recv_capacity = effect.recv_capacity,
                                  .tokens_from = effect.tokens_from},
                                 now_);
  TakeMoved(*backend);
}

void EffectPerformer::Run(const CancelMove& effect) {
  Backend* const backend = arenas_.FindBackend(effect.set);
  if (backend == nullptr) return;
  backend->CancelMove(effect.operation.value);
  if (backend->member_moves() != nullptr)
    backend->member_moves()->Cancel(effect.operation.value, now_);
  TakeMoved(*backend);
}

void EffectPerformer::Run(const CountRoutes& effect) {
  ArenaSet* const set = arenas_.Find(effect.set);
  const auto tenant = tenants_.find({effect.group, effect.formation});
  if (set == nullptr || tenant == tenants_.end()) return;
  const TouchedUser::Scope touch = Touch(effect.set);
  route_counter_.Count(effect, tenant->second.move.spec, *set, now_, tenant->second.routes);
}

void EffectPerformer::Run(const SendToPeer& effect) {
  if (wire_ != nullptr) wire_->Send(effect.peer, effect.message);
}

void EffectPerformer::Run(const OpenWire& effect) {
  ArenaSet* const set = arenas_.Find(effect.set);
  if (wire_ == nullptr || set == nullptr) return;
  std::map<Rank, RemoteRegion> regions;
  for (const auto& [rank, arena] : effect.arenas) {
    const absl::StatusOr<char*> mapped = set->Map(arena);
    if (!mapped.ok()) {
      return exchange_.RowsRefused(effect.operation, rank, mapped.status(), now_);
    }
    regions[rank] = {*mapped + effect.offset, effect.servers.at(rank)};
  }
  EPD_FAILPOINT("worker.wire.open");
  wire_->Open(effect.operation, effect.bytes, std::move(regions));
}

void EffectPerformer::Run(const SendRows& effect) {
  ArenaSet* const set = arenas_.Find(effect.set);
  const auto tenant = tenants_.find({effect.operation.group, effect.operation.formation});
  if (wire_ == nullptr || set == nullptr || tenant == tenants_.end()) return;
  const TouchedUser::Scope touch = Touch(effect.set);
  const absl::StatusOr<char*> mapped = set->Map(effect.arena);
  if (!mapped.ok()) {
    return exchange_.RowsRefused(effect.operation, effect.rank, mapped.status(), now_);
  }
  wire_->Send(
      RowsToSend{MakeStage(tenant->second, *mapped + effect.offset, effect.said, effect.rank),
                 effect.operation, effect.destinations});
}

StageToSend EffectPerformer::MakeStage(const TenantFacts& tenant, const char* base,
                                       const Announcement& said, Rank rank) {
  const MoveGroup& group = tenant.move;
  PublishedStage stage{.base = base, .said = said, .rank = rank, .spec = {}};
  stage.spec.num_ranks = static_cast<int32_t>(group.spec.num_ranks);
  stage.spec.num_experts = static_cast<int32_t>(group.spec.num_experts);
  stage.spec.top_k = static_cast<int32_t>(said.top_k);
  stage.spec.alignment = static_cast<int32_t>(said.alignment);
  stage.spec.max_tokens = group.spec.max_tokens_per_rank;
  return {.stage = stage, .expert_owner = group.expert_owner};
}

void EffectPerformer::Run(const SendRowsAhead& effect) {
  ArenaSet* const set = arenas_.Find(effect.set);
  const auto tenant = tenants_.find({effect.group, effect.formation});
  const TouchedUser::Scope touch = Touch(effect.set);
  for (const SendRowsAhead::Stage& stage : effect.stages) {
    absl::Status sent = absl::InternalError("the arenas of the operation are gone");
    if (wire_ != nullptr && set != nullptr && tenant != tenants_.end()) {
      const absl::StatusOr<char*> mapped = set->Map(stage.arena);
      sent = mapped.status();
      if (sent.ok()) {
        const StageToSend made =
            MakeStage(tenant->second, *mapped + stage.offset, stage.said, stage.rank);
        for (const auto& [peer, ranks] : effect.destinations) {
          if (sent.ok()) sent = wire_->SendAhead(peer, stage.message, made, ranks);
        }
      }
    }
    if (!sent.ok()) return exchange_.RowsAheadRefused(effect.operation, stage.rank, sent, now_);
  }
  exchange_.RowsAheadSent(effect.operation, now_);
}

void EffectPerformer::Run(const LandRows& effect) {
  ArenaSet* const set = arenas_.Find(effect.set);
  if (wire_ == nullptr || set == nullptr) return;
  const TouchedUser::Scope touch = Touch(effect.set);
  const absl::StatusOr<char*> mapped = set->Map(effect.arena);
  if (!mapped.ok()) {
    return exchange_.RowsAheadRefused(effect.operation, effect.name.rank, mapped.status(), now_);
  }
  EPD_FAILPOINT("worker.wire.land");
  wire_->Land(effect.name, *mapped + effect.offset);
}

void EffectPerformer::Run(const DropRows& effect) {
  if (wire_ != nullptr) wire_->Drop(effect.name);
}

void EffectPerformer::Run(const CloseWire& effect) {
  EPD_FAILPOINT("worker.wire.close");
  if (wire_ != nullptr) wire_->Close(effect.operation);
}

void EffectPerformer::Run(const ReportTenantBroken& effect) {
  v1::FromWorker message;
  v1::TenantBroken& broken = *message.mutable_tenant_broken();
  broken.set_group_id(effect.group.value);
  broken.set_formation(effect.formation.value);
  *broken.mutable_cause() = ToProto(effect.cause);
  Send(message);
}

void EffectPerformer::Run(const EvictSession& effect) {
  v1::FromWorker message;
  message.mutable_evict_session()->set_session_id(effect.session.value);
  *message.mutable_evict_session()->mutable_cause() = ToProto(effect.cause);
  Send(message);
}

void EffectPerformer::Run(const LogLine& effect) {
  if (!log_limiter_.Admit(now_)) return;
  v1::FromWorker message;
  message.mutable_log()->set_severity(static_cast<int32_t>(effect.severity));
  std::string text = effect.text;
  if (const uint64_t dropped = log_limiter_.TakeDropped(); dropped > 0) {
    absl::StrAppend(&text, " (", dropped, " lines before this one were left out)");
  }
  message.mutable_log()->set_text(text::Clean(text, kLogBytes));
  Send(message);
}

absl::Status EffectPerformer::AddTenant(const TenantStart& start, absl::Time now) {
  now_ = now;
  TenantFacts facts;
  facts.move =
      MoveGroup{.group_id = start.group.value, .epoch = start.epoch.value, .spec = start.spec};
  facts.move.formation = start.formation.value;
  for (const Rank owner : start.spec.expert_owner) {
    facts.move.expert_owner.push_back(static_cast<int32_t>(owner.value));
  }
  for (const RankHolder& member : start.members) {
    if (member.session) facts.sessions.push_back(member.session);
  }
  const bool spans = std::any_of(start.members.begin(), start.members.end(),
                                 [](const RankHolder& member) { return !member.session; });
  facts.link = spans ? "streams" : start.on_device() ? "device_memory" : "shared_memory";
  if (spans && start.on_device()) {
    if (absl::Status entered = EnterCommunicator(start, facts); !entered.ok()) return entered;
  }
  if (start.spec.traits().by_library() && facts.members == nullptr) {
    return SeveralRanksOnOneGpu(start.spec);
  }
  EPD_FAILPOINT("worker.tenant.start");
  tenants_[{start.group, start.formation}] = std::move(facts);
  return absl::OkStatus();
}

absl::Status EffectPerformer::EnterCommunicator(const TenantStart& start, TenantFacts& facts) {
  facts.members = BackendFor(start.spec.backend).member_moves();
  if (facts.members == nullptr) {
    return absl::FailedPreconditionError("this node's worker moves no rows between devices");
  }
  absl::StatusOr<Membership> membership = MembershipOf(start);
  if (!membership.ok()) return membership.status();
  CommunicatorMember& in = membership->in;
  if (start.spec.traits().by_library()) {
    if (in.workers.size() < start.members.size()) return SeveralRanksOnOneGpu(start.spec);
    if (absl::Status fit = CheckNcclEpTeams(start.spec, NodesOf(start)); !fit.ok()) return fit;
    in.library = start.spec;
  }
  facts.move.member_of_rank = std::move(membership->member_of_rank);
  facts.move.communicator = in.communicator;
  return facts.members->Enter(in, now_);
}

absl::Status EffectPerformer::Entered(const ReportTenantReady& effect) const {
  const auto tenant = tenants_.find({effect.group, effect.formation});
  if (tenant == tenants_.end() || tenant->second.members == nullptr) return absl::OkStatus();
  const MoveGroup& move = tenant->second.move;
  return tenant->second.members->Entered(move.communicator, move.epoch);
}

void EffectPerformer::RemoveTenant(GroupId group, Formation formation) {
  const auto found = tenants_.find({group, formation});
  if (found == tenants_.end()) return;
  const MoveGroup& move = found->second.move;
  if (found->second.members != nullptr) {
    found->second.members->Leave(move.communicator, move.epoch, now_);
  }
  tenants_.erase(found);
}

void EffectPerformer::WorkerLost(Incarnation worker, const absl::Status& cause, absl::Time now) {
  now_ = now;
  for (const std::unique_ptr<Backend>& backend : backends_) {
    if (backend->member_moves() == nullptr) continue;
    backend->member_moves()->WorkerLost(worker.value, std::string(cause.message()), now);
  }
}

RowLink EffectPerformer::LinkOf(GroupId group, Formation formation) const {
  const auto found = tenants_.find({group, formation});
  if (found == tenants_.end()) return {};
  const MoveGroup& move = found->second.move;
  if (found->second.members != nullptr)
    return found->second.members->LinkOf(move.communicator, move.epoch);
  return {.name = found->second.link};
}

const Routes* EffectPerformer::RoutesOf(GroupId group, Formation formation) const {
  const auto found = tenants_.find({group, formation});
  return found == tenants_.end() ? nullptr : &found->second.routes;
}

}  // namespace epd
