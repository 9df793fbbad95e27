#include "tests/unit/daemon/worker/exchange_simulation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/unit/daemon/worker/exchange_world.h"

namespace epd {
namespace simulation {

SessionId Simulation::NewSession() {
  const SessionId id(next_session_++);
  alive_.insert(id);
  exchange_.AddSession(id);
  return id;
}

void Simulation::AddGroup() {
  SimGroup group;
  group.spec.name = absl::StrCat("g", groups_.size());
  group.spec.num_ranks = static_cast<uint32_t>(2 + Roll(3));
  group.spec.num_experts = 4;
  group.spec.max_tokens_per_rank = 16;
  group.spec.hidden = 8;
  group.spec.executor = Chance(30) ? Executor::kWorker : Executor::kClient;
  group.spec.deadlines.absent = kAbsent;
  group.spec.deadlines.undecided = kUndecided;
  // Later ones are tenants of the first group, of whom nothing is shared, or groups that share
  // sessions, and so arenas, with it.
  const bool tenant = !groups_.empty() && Chance(50);
  if (tenant) {
    group.spec = groups_[0].spec;
    group.spec.tenant = absl::StrCat("tenant", groups_.size());
  }
  for (uint32_t r = 0; r < group.spec.num_ranks; ++r) {
    const bool share = !tenant && !groups_.empty() && r < groups_[0].members.size();
    group.members.push_back(share ? groups_[0].members[r] : NewSession());
  }
  group.runs.assign(group.spec.num_ranks, std::vector<ProgramRun>(kNumPrograms));
  group.bases.assign(group.spec.num_ranks, std::vector<uint64_t>(kNumPrograms));
  groups_.push_back(std::move(group));
  Form(groups_.back());
}

void Simulation::Form(SimGroup& group) {
  TenantStart start{.group = GroupId(1 + static_cast<uint64_t>(&group - groups_.data())),
                    .epoch = Epoch(1),
                    .formation = Formation(++group.formation),
                    .spec = group.spec,
                    .members = {},
                    .bases = {},
                    .base_cause = absl::AbortedError("re-formed")};
  for (uint32_t r = 0; r < group.spec.num_ranks; ++r) {
    start.members.push_back(RankHolder{.rank = Rank(r),
                                       .node = {},
                                       .session = group.members[r],
                                       .arena_index = 0,
                                       .host = "h",
                                       .pid = static_cast<int32_t>(r),
                                       .client_name = {}});
    for (uint32_t p = 0; p < kNumPrograms; ++p) {
      ProgramId program{};
      program[0] = static_cast<uint8_t>(p);
      start.bases.push_back({.rank = Rank(r), .program = program, .base = group.bases[r][p]});
    }
  }
  group.broken = group.drained = false;
  group.diverged.clear();
  for (std::vector<ProgramRun>& runs : group.runs) {
    for (ProgramRun& run : runs) run.own = run.skipped = run.skipped_before = 0;
  }
  if (!exchange_.StartTenant(start, now_).ok()) Violate("a sound tenant was refused");
}

// A member died: its rank gets a new session, the others a base by the cut-off.
void Simulation::Break(SimGroup& group) {
  const auto index = static_cast<uint64_t>(&group - groups_.data());
  exchange_.EndTenant(GroupId(1 + index), Formation(group.formation),
                      absl::UnavailableError("a member died"), now_);
  Perform();
  std::vector<Coming> late = LateCalls(index);
  for (uint32_t p = 0; p < kNumPrograms; ++p) {
    uint64_t highest = 0;
    for (uint32_t r = 0; r < group.spec.num_ranks; ++r) {
      if (!alive_.contains(group.members[r])) continue;
      const uint64_t begun = group.runs[r][p].begun;
      highest = std::max(highest, begun > group.bases[r][p] ? begun - group.bases[r][p] : 0);
    }
    for (uint32_t r = 0; r < group.spec.num_ranks; ++r) group.bases[r][p] += highest;
  }
  for (uint32_t r = 0; r < group.spec.num_ranks; ++r) {
    if (alive_.contains(group.members[r])) continue;
    group.members[r] = NewSession();
    group.runs[r].assign(kNumPrograms, ProgramRun());
    group.bases[r].assign(kNumPrograms, 0);
  }
  Form(group);
  Perform();
  for (Coming& coming : late) {
    if (Is(Sabotage::kForgetEnded)) coming.request.formation = group.formation;
    Announce(std::move(coming));
  }
}

// Of ranks that stay and do not know yet that the formation has ended: some come before the next one
// has begun, the others are returned.
std::vector<Coming> Simulation::LateCalls(size_t g) {
  std::vector<Coming> late;
  for (uint32_t rank = 0; rank < groups_[g].spec.num_ranks; ++rank) {
    if (!alive_.contains(groups_[g].members[rank]) || Chance(50)) continue;
    std::optional<Coming> coming =
        NextCall(g, rank, static_cast<uint32_t>(kNumPrograms - 1 - Roll(num_programs_)));
    if (!coming.has_value()) continue;
    if (Chance(50)) {
      Announce(*std::move(coming));
      Perform();
    } else {
      late.push_back(*std::move(coming));
    }
  }
  return late;
}

void Simulation::Refill(ProgramRun& run, uint32_t program) {
  if (run.num_running > 0 || !run.ordinals.empty()) return;
  run.raw = run.begun++;
  const bool named = program + 1 == kNumPrograms;
  for (uint32_t o = 0; o < (named ? 1 : kOrdinals); ++o) run.ordinals.push_back(o);
  std::shuffle(run.ordinals.begin(), run.ordinals.end(), random_);
}

void Simulation::BeginCall() {
  const size_t g = Roll(groups_.size());
  SimGroup& group = groups_[g];
  const auto rank = static_cast<uint32_t>(Roll(group.spec.num_ranks));
  // Calls of a broken group fail at once and say little.
  if ((group.broken || group.runs.empty()) && Chance(90)) return Break(group);
  const auto program = static_cast<uint32_t>(kNumPrograms - 1 - Roll(num_programs_));
  if (!alive_.contains(group.members[rank]) || frozen_.contains({g, rank})) return;
  if (std::optional<Coming> coming = NextCall(g, rank, program)) Announce(*std::move(coming));
}

std::optional<Coming> Simulation::NextCall(size_t g, uint32_t rank, uint32_t program) {
  ProgramRun& run = groups_[g].runs[rank][program];
  Refill(run, program);
  if (run.ordinals.empty()) return std::nullopt;
  const uint32_t ordinal = run.ordinals.back();
  run.ordinals.pop_back();
  ++run.num_running;
  return MakeCall(g, rank, program, ordinal);
}

// The ranks ran different programs and were told so: their next executions are the same ones.
void Simulation::MeetAnew(SimGroup& group) {
  for (uint32_t p = 0; p + 1 < kNumPrograms; ++p) {
    // Raw numbers below the base are of an earlier formation.
    const auto begun = [&](uint32_t r) {
      return std::max(group.runs[r][p].begun, group.bases[r][p]);
    };
    const auto next = [&](uint32_t r) {
      return begun(r) - group.bases[r][p] + group.runs[r][p].Skipped(begun(r));
    };
    uint64_t first = 0;
    for (uint32_t r = 0; r < group.spec.num_ranks; ++r) first = std::max(first, next(r));
    for (uint32_t r = 0; r < group.spec.num_ranks; ++r) {
      ProgramRun& run = group.runs[r][p];
      const uint64_t ahead = first - next(r);
      run.skipped_before = run.Skipped(begun(r));
      run.skipped += ahead;
      run.own = begun(r);
    }
  }
}

// An eager buffer of the session's that is in no use of it, as its free slots are.
std::optional<uint8_t> Simulation::FreeEagerBuffer(const SimGroup& group, SessionId session) {
  if (group.spec.executor == Executor::kWorker || Chance(10)) return std::nullopt;
  for (uint8_t eager_buffer = 0; eager_buffer < eager_areas_[group.set].num_eager_buffers;
       ++eager_buffer) {
    const bool busy = std::any_of(calls_.begin(), calls_.end(), [&](const Call& call) {
      return call.session == session && call.eager_buffer == eager_buffer &&
             call.state != CallState::kEnded;
    });
    if (!busy) return eager_buffer;
  }
  return std::nullopt;
}

Coming Simulation::MakeCall(size_t g, uint32_t rank, uint32_t program, uint32_t ordinal) {
  const SimGroup& group = groups_[g];
  const ProgramRun& run = group.runs[rank][program];
  shm::SlotRequest request = {};
  request.step = shm::Step::kAnnounce;
  request.kind = shm::Kind::kDispatch;
  request.group_id = 1 + g;
  request.epoch = 1;
  request.formation = group.formation;
  request.rank = rank;
  request.program[0] = static_cast<uint8_t>(program);
  request.has_name = program + 1 == kNumPrograms;
  request.execution = run.raw;
  request.ordinal = ordinal;
  request.dtype = 1;
  request.row_bytes = 32;
  request.plan_id = 1;
  const bool rough = Chance(3);
  request.top_k = rough && Chance(25) ? 2 : 1;            // Now and then a rank disagrees,
  request.announce.demand = rough && Chance(25) ? 9 : 1;  // overflows,
  request.recv_capacity = 8;
  request.error_code = rough && Chance(25) ? 3 : 0;  // or has bad input.
  request.stage_bytes = rough && Chance(25) ? 1 << 30 : 4096 * Roll(4);
  Call call{.group = g,
            .formation = group.formation,
            .rank = rank,
            .session = group.members[rank],
            .program = program,
            .identity = {g, group.formation, program,
                         run.raw - group.bases[rank][program] + run.Skipped(run.raw), ordinal},
            .state = CallState::kAnnounced,
            .submission = {},
            .operation = {},
            .set = group.set,
            .since = now_};
  if (run.raw < group.bases[rank][program]) std::get<1>(call.identity) = 0;  // Of no formation.
  return {call, request};
}

void Simulation::Announce(Coming coming) {
  auto& [call, request] = coming;
  const SimGroup& group = groups_[call.group];
  const bool current = call.formation == group.formation;
  if (current && request.stage_bytes <= kEagerBufferBytes)
    call.eager_buffer = FreeEagerBuffer(group, call.session);
  if (call.eager_buffer.has_value()) {
    request.step = shm::Step::kAnnounceStaged;
    request.announce.eager_buffer = *call.eager_buffer;
  }
  call.submission = NewSubmission(call.session);
  call.since = now_;
  call_of_[call.submission] = calls_.size();
  calls_.push_back(call);
  exchange_.Take(call.submission, request, now_);
}

void Simulation::GoOn() {
  std::vector<size_t> ready;
  for (size_t i = 0; i < calls_.size(); ++i) {
    const Call& call = calls_[i];
    if (call.holds() && !call.dead && !frozen_.contains({call.group, call.rank}))
      ready.push_back(i);
  }
  if (ready.empty()) return BeginCall();
  NextSubmission(calls_[ready[Roll(ready.size())]]);
}

void Simulation::NextSubmission(Call& call) {
  shm::SlotRequest request = {};
  request.step = call.state == CallState::kCopying ? shm::Step::kPublish : shm::Step::kPulled;
  request.rank = call.rank;
  request.operation.op_id = call.operation.value;
  if (request.step == shm::Step::kPublish && Chance(1)) request.error_code = 15;
  call.state = request.step == shm::Step::kPublish ? CallState::kPublished : CallState::kPulled;
  call.submission = NewSubmission(call.session);
  call.since = now_;
  call_of_[call.submission] = static_cast<size_t>(&call - calls_.data());
  const Submission submission = call.submission;
  exchange_.Take(submission, request, now_);
  if (Is(Sabotage::kEarlyPulled) && request.step == shm::Step::kPulled && Chance(20)) {
    Do(AnswerSubmission{
        .submission = submission, .status = {}, .operation = call.operation, .region = {}});
    answered_early_.insert(submission);
  }
}

void Simulation::KillSession() {
  if (alive_.empty()) return;
  Kill(*std::next(alive_.begin(), static_cast<long>(Roll(alive_.size()))), Chance(30));
}

void Simulation::Kill(SessionId session, bool process_alive) {
  alive_.erase(session);
  evicted_.erase(session);
  if (process_alive) lingering_.insert(session);
  for (Call& call : calls_) {
    if (call.session == session) call.dead = true;
  }
  for (SimGroup& group : groups_) {
    if (std::count(group.members.begin(), group.members.end(), session) > 0) group.broken = true;
  }
  const std::vector<size_t> others = CallsWithout(session);
  exchange_.SessionDead(session, absl::UnavailableError("killed"),
                        process_alive && !Is(Sabotage::kForgetProcess), now_);
  for (size_t i = 1; Is(Sabotage::kSpreadDeath) && i < others.size(); ++i) {
    // One whose peer has a call open, too.
    const Call& victim = calls_[others[i - 1]];
    const Call& peer = calls_[others[i]];
    if (victim.group != peer.group || victim.session == peer.session || !peer.open()) continue;
    exchange_.SessionDead(victim.session, absl::UnavailableError("killed"), false, now_);
    break;
  }
  memory_suffices_ = true;
  Perform();
  memory_suffices_ = false;
  for (const size_t i : others) {
    // A holder that the engine evicted in the meantime breaks its own group.
    const bool own_loss = groups_[calls_[i].group].broken;
    if (calls_[i].failed && !own_loss) Violate("a death ended a call of another tenant");
  }
}

// Running calls of groups and tenants in which the session is not.
std::vector<size_t> Simulation::CallsWithout(SessionId session) const {
  std::vector<size_t> calls;
  for (size_t i = 0; i < calls_.size(); ++i) {
    const Call& call = calls_[i];
    const SimGroup& group = groups_[call.group];
    const bool member = std::count(group.members.begin(), group.members.end(), session) > 0;
    if (!member && !group.broken && !call.dead && (call.open() || call.holds())) calls.push_back(i);
  }
  return calls;
}

// Any bytes, from any session that is attached.
void Simulation::Hostile() {
  if (alive_.empty()) return;
  const SessionId session =
      Chance(50) ? NewSession()
                 : *std::next(alive_.begin(), static_cast<long>(Roll(alive_.size())));
  shm::SlotRequest request = {};
  request.step = static_cast<shm::Step>(Roll(5));
  request.kind = static_cast<shm::Kind>(Roll(8));
  request.operation.op_id = Roll(200);
  request.group_id = Roll(4);
  request.epoch = Roll(3);
  request.formation = Roll(3);
  request.rank = static_cast<uint32_t>(Roll(6));
  // Its own rank's programs stay sound, or the peers could rightly be failed by it.
  request.program[1] = 77;
  request.execution = Chance(20) ? random_() : Roll(3);
  request.has_name = static_cast<uint32_t>(Roll(3));
  request.error_code = Chance(50) ? 0 : static_cast<uint32_t>(random_());
  request.top_k = static_cast<uint32_t>(Chance(50) ? 1 : random_());
  request.row_bytes = Chance(50) ? 32 : random_();
  request.stage_bytes = random_();
  request.out_bytes = random_();
  // A publish or pulled in the name of a rank's honest call would be that rank's own.
  const bool of_honest_rank = std::any_of(calls_.begin(), calls_.end(), [&](const Call& call) {
    return call.session == session && call.operation.value == request.operation.op_id;
  });
  if (request.step != shm::Step::kAnnounce && of_honest_rank) return;
  const Submission submission = NewSubmission(session);
  stray_.insert(submission);
  exchange_.Take(submission, request, now_);
}

void Simulation::FinishMoves(bool all) {
  while (!moving_.empty()) {
    const OperationId operation = moving_.back();
    moving_.pop_back();
    exchange_.RowsMoved(
        operation, Chance(95) ? absl::OkStatus() : absl::DataLossError("a corrupt stage"), now_);
    Perform();
    if (!all) return;
  }
}

void Simulation::Advance(absl::Duration by) {
  now_ += by;
  if (!Is(Sabotage::kForgetDeadlines)) exchange_.Tick(now_);
}

void Simulation::StepWorld() {
  const uint64_t roll = Roll(100);
  if (roll < 45) return BeginCall();
  if (roll < 75) return GoOn();
  if (roll < 80) return FinishMoves(false);
  if (roll < 88) return Advance(absl::Milliseconds(Roll(1000)));
  if (roll < 89) return Chance(50) ? Advance(kUndecided) : BeginCall();
  if (roll < 91) return Hostile();
  if (roll < 92) {
    const size_t g = Roll(groups_.size());
    frozen_.insert({g, static_cast<uint32_t>(Roll(groups_[g].spec.num_ranks))});
    return;
  }
  if (roll < 94) return frozen_.clear();
  if (roll < 95) return Chance(50) ? KillSession() : GoOn();
  if (roll < 96) {
    for (const SessionId session : std::exchange(lingering_, {})) {
      exchange_.SessionDead(session, absl::UnavailableError("gone"), false, now_);
    }
    return;
  }
  SimGroup& group = groups_[Roll(groups_.size())];
  if (group.broken) return Break(group);
  if (roll == 99 && Chance(30)) {
    group.broken = true;  // Drained and then formed anew.
    exchange_.DrainTenant(GroupId(1 + static_cast<uint64_t>(&group - groups_.data())),
                          Formation(group.formation), now_);
  }
}

void Simulation::CheckWaits() {
  for (const Call& call : calls_) {
    if (call.dead || !call.open()) continue;
    absl::Duration limit = kAbsent + kUndecided;
    if (call.state == CallState::kPublished) limit = kUndecided;
    if (call.state == CallState::kPulled) limit = kUndecided + kHold;
    if (now_ - call.since > limit) Violate("a use waits beyond its deadlines");
  }
  const absl::Status pool = exchange_.staging().pool().CheckConsistent();
  if (!pool.ok()) Violate(std::string(pool.message()));
}

// Everything ends: groups close, living clients finish their calls, lingering processes go.
void Simulation::Finish() {
  for (size_t g = 0; g < groups_.size(); ++g) {
    exchange_.EndTenant(GroupId(1 + g), Formation(groups_[g].formation),
                        absl::UnavailableError("the end"), now_);
    Perform();
  }
  FinishMoves(true);
  for (size_t i = 0; i < calls_.size(); ++i) {
    while (!calls_[i].dead && calls_[i].holds()) {
      NextSubmission(calls_[i]);
      Perform();
    }
  }
  for (const SessionId session : std::exchange(lingering_, {})) {
    exchange_.SessionDead(session, absl::UnavailableError("gone"), false, now_);
    Perform();
  }
  CheckEnd();
}

void Simulation::CheckEnd() {
  for (const Call& call : calls_) {
    if (!call.dead && call.open()) return Violate("a claim was never answered");
  }
  for (const Submission& submission : stray_) {
    if (alive_.contains(submission.session)) return Violate("a hostile claim was never answered");
  }
  if (exchange_.num_open_operations() != 0) Violate("operations are open after the end");
  if (exchange_.staging().pool().in_use_bytes() != 0) Violate("regions did not come back");
  if (!records_.empty()) Violate("records did not come back");
  if (!arenas_.empty()) Violate("arenas did not come back");
}

SimulationResult Simulation::Run(int num_events) {
  const size_t num_groups = 1 + Roll(3);
  groups_.reserve(num_groups);
  for (size_t g = 0; g < num_groups; ++g) {
    AddGroup();
    Perform();
  }
  calls_.reserve(static_cast<size_t>(num_events) * 5);  // Late calls come with others.
  for (step_ = 1; step_ <= num_events && result_.violation.empty(); ++step_) {
    StepWorld();
    Perform();
    CheckWaits();
  }
  if (result_.violation.empty()) Finish();
  return result_;
}

}  // namespace simulation

SimulationResult SimulateExchange(uint64_t seed, int num_events, Sabotage sabotage) {
  return simulation::Simulation(seed, sabotage).Run(num_events);
}

}  // namespace epd
