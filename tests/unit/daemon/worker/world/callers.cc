#include "tests/unit/daemon/worker/world/callers.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/control/cut_off.h"
#include "tests/unit/daemon/worker/world/make_request.h"

namespace epd::world {
namespace {

using State = Call::State;

ProgramId IdOf(uint8_t program) {
  ProgramId id{};
  id[0] = program;
  return id;
}

}  // namespace

Callers::Callers(World& world, const CallerOptions& options)
    : w_(world),
      calls_(world),
      options_(options),
      num_programs_(static_cast<uint8_t>(
          options.num_programs < kMaxPrograms ? options.num_programs : 1 + w_.Roll(kMaxPrograms))) {
  calls_.on_end = [this](const Call& call, const absl::Status& status) { EndCall(call, status); };
}

SessionId Callers::NewSession() { return SessionId(next_session_++); }

void Callers::AddGroup(Group group) {
  Group& added = w_.AddGroup(std::move(group));
  runs_[added.id].assign(added.spec.num_ranks, std::vector<ProgramRun>(kMaxPrograms));
  w_.Form(added);
}

Callers::ProgramRun& Callers::RunOf(const Group& group, uint32_t rank, uint8_t program) {
  return runs_[group.id][rank][program];
}

// ---- events ----

void Callers::Run(int num_events) {
  for (int step = 0; step < num_events && !w_.broken(); ++step) {
    Step();
    w_.StepEnds();
  }
  if (w_.broken()) return;
  if (w_.num_workers() == 1) {
    EndEverything();
  } else {
    LetEverythingEnd();
  }
}

void Callers::Step() {
  int sum = 0;
  for (const auto& [weight, unused] : options_.events) sum += weight;
  auto roll = static_cast<int>(w_.Roll(static_cast<uint64_t>(sum)));
  for (const auto& [weight, event] : options_.events) {
    roll -= weight;
    if (roll < 0) {
      Do(event);
      break;
    }
  }
  for (int at = 0; at < w_.num_workers(); ++at) {
    for (auto evicted = std::exchange(w_.worker(at).evicted, {}); !evicted.empty();
         evicted.pop_back()) {
      if (w_.alive.contains(evicted.back().session)) Kill(evicted.back().session, w_.Chance(50));
    }
  }
  for (Group& group : w_.groups) {
    if (w_.num_workers() > 1 && group.ended) Control(group);
  }
}

void Callers::Do(Event event) {
  Group& group = w_.groups[w_.Roll(w_.groups.size())];
  switch (event) {
    case Event::kCall:
      return Begin();
    case Event::kGoOn:
      return GoOn();
    case Event::kMove:
      return void(w_.AdvanceMove());
    case Event::kPages:
      return void(w_.MakePages());
    case Event::kMessage:
      return void(w_.DeliverMessage());
    case Event::kRows:
      return void(w_.DeliverRows());
    case Event::kTime:
      w_.now += w_.Roll(1000) * options_.time;
      return w_.Tick();
    case Event::kLongTime:
      w_.now += group.spec.deadlines.undecided;
      return w_.Tick();
    case Event::kHostile:
      return Hostile();
    case Event::kFreeze:
      frozen_.insert({group.id, static_cast<uint32_t>(w_.Roll(group.spec.num_ranks))});
      return;
    case Event::kThaw:
      return frozen_.clear();
    case Event::kKill:
      if (!w_.alive.empty()) Kill(AnySession(), w_.Chance(30));
      return;
    case Event::kProcessGone:
      return EndProcesses();
    case Event::kControl:
      return Control(group);
    case Event::kCut:
      return w_.LosePeerStream();
  }
}

// ---- calls ----

uint8_t Callers::PickProgram() {
  return static_cast<uint8_t>(kMaxPrograms - 1 - w_.Roll(num_programs_));
}

void Callers::Begin() {
  Group& group = w_.groups[w_.Roll(w_.groups.size())];
  const auto rank = static_cast<uint32_t>(w_.Roll(group.spec.num_ranks));
  // Calls of a broken group fail at once and say little.
  if (group.ended && (w_.num_workers() > 1 || w_.Chance(90))) return Control(group);
  const uint8_t program = PickProgram();
  if (!w_.alive.contains(group.members[rank]) || frozen_.contains({group.id, rank})) return;
  if (auto coming = NextCall(group, rank, program)) Announce(*std::move(coming));
}

std::optional<Callers::Coming> Callers::NextCall(Group& group, uint32_t rank, uint8_t program) {
  ProgramRun& run = RunOf(group, rank, program);
  if (run.num_running == 0 && run.ordinals.empty()) {
    run.raw = run.begun++;
    if (run.raw < group.BaseOf(rank, program)) ++run.num_cut;
    const bool named = program + 1 == kMaxPrograms;
    for (uint32_t o = 0; o < (named ? 1 : options_.num_ordinals); ++o) run.ordinals.push_back(o);
    std::shuffle(run.ordinals.begin(), run.ordinals.end(), w_.random());
  }
  if (run.ordinals.empty()) return std::nullopt;
  const uint32_t ordinal = run.ordinals.back();
  run.ordinals.pop_back();
  ++run.num_running;
  return MakeCall(group, rank, program, ordinal);
}

Callers::Coming Callers::MakeCall(Group& group, uint32_t rank, uint8_t program, uint32_t ordinal) {
  const ProgramRun& run = RunOf(group, rank, program);
  const CallOf said{.group = group.id,
                    .epoch = Epoch(group.epoch),
                    .formation = epd::Formation(group.formation),
                    .rank = rank,
                    .program = program,
                    .execution = run.raw,
                    .ordinal = ordinal};
  shm::SlotRequest request = options_.prepares ? MakePrepare(said) : MakeDispatch(said);
  request.has_name = program + 1 == kMaxPrograms;
  request.stage_bytes = options_.prepares ? 16 + 4096 * (6 + w_.Roll(8)) : 4096 * w_.Roll(4);
  if (options_.prepares && group.spec.executor == Executor::kWorker) request.plan_bytes = 16;
  if (!w_.quiet && w_.Chance(options_.prepares ? 2 : 3)) {
    if (w_.OneIn(8)) request.alignment = 8;          // Now and then a rank disagrees,
    if (w_.OneIn(4)) request.announce.demand = 65;   // overflows,
    if (w_.OneIn(2)) request.error_code = 3;         // has bad input,
    if (w_.OneIn(4)) request.stage_bytes = 1 << 30;  // or wants more than there is.
  }
  const uint64_t base = group.BaseOf(rank, program);
  const int64_t number = run.raw < base  // Of no formation?
                             ? -1
                             : static_cast<int64_t>(run.raw - base + run.Skipped(run.raw));
  return {Call{.group = &group,
               .formation = group.formation,
               .rank = rank,
               .session = group.members[rank],
               .program = program,
               .identity = {group.id, group.formation, program, number, ordinal},
               .num_cut = run.num_cut},
          request};
}

void Callers::Announce(Coming coming) { calls_.Announce(std::move(coming.call), coming.request); }

void Callers::GoOn() {
  std::vector<size_t> ready;
  for (const size_t running : w_.running) {
    const Call& call = w_.calls[running];
    if (call.holds() && !frozen_.contains({call.group->id, call.rank})) ready.push_back(running);
  }
  if (ready.empty()) return Begin();
  calls_.NextStep(ready[w_.Roll(ready.size())]);
}

void Callers::EndCall(const Call& call, const absl::Status& status) {
  ++(status.ok() ? num_good_ : num_failed_);
  Group& group = *call.group;
  if (call.session == group.members[call.rank]) {
    ProgramRun& run = RunOf(group, call.rank, call.program);
    --run.num_running;
    if (status.ok()) {
      failed_.erase({group.id, call.rank});
      return;
    }
    run.ordinals.clear();  // The execution is over on this rank.
    failed_.insert({group.id, call.rank});
  }
  if (!absl::StrContains(status.message(), "different programs") ||
      call.formation != group.formation)
    return;
  const std::string text(status.message().substr(status.message().find(": ") + 2));
  if (std::exchange(diverged_[group.id], text) != text) MeetAnew(group);
}

// The ranks ran different programs and were told so: their next executions are the same ones.
void Callers::MeetAnew(Group& group) {
  for (uint8_t p = 0; p + 1 < kMaxPrograms; ++p) {
    // Raw numbers below the base are of an earlier formation.
    const auto begun = [&](uint32_t r) {
      return std::max(RunOf(group, r, p).begun, group.BaseOf(r, p));
    };
    const auto next = [&](uint32_t r) {
      return begun(r) - group.BaseOf(r, p) + RunOf(group, r, p).Skipped(begun(r));
    };
    uint64_t first = 0;
    for (uint32_t r = 0; r < group.spec.num_ranks; ++r) first = std::max(first, next(r));
    for (uint32_t r = 0; r < group.spec.num_ranks; ++r) {
      ProgramRun& run = RunOf(group, r, p);
      const uint64_t ahead = first - next(r);
      run.skipped_before = run.Skipped(begun(r));
      run.skipped += ahead;
      run.own = begun(r);
    }
  }
}

// ---- sessions ----

SessionId Callers::AnySession() {
  return *std::next(w_.alive.begin(), static_cast<long>(w_.Roll(w_.alive.size())));
}

// Any bytes, from any session that is attached.
void Callers::Hostile() {
  if (w_.alive.empty()) return;
  const bool stranger = w_.Chance(50);
  const SessionId session = stranger ? NewSession() : AnySession();
  if (stranger) {
    w_.alive.insert(session);
    w_.worker(0).exchange.AddSession(session);
  }
  const shm::SlotRequest request = MakeHostile(w_.random());
  // A publish or pulled in the name of a rank's honest call would be that rank's own.
  const bool of_honest_rank = std::any_of(w_.calls.begin(), w_.calls.end(), [&](const Call& call) {
    return call.session == session && call.operation.value == request.operation.op_id;
  });
  if (request.step != shm::Step::kAnnounce && of_honest_rank) return;
  w_.Take(w_.worker(0), {.session = session, .slot = 0, .claim = calls_.NextClaim()}, request);
}

void Callers::Kill(SessionId session, bool process_alive) {
  w_.Note(absl::StrCat("session ", session.value, " dies"));
  w_.alive.erase(session);
  if (process_alive) w_.lingering.insert(session);
  for (Group& group : w_.groups) {
    if (std::count(group.members.begin(), group.members.end(), session) > 0) group.ended = true;
  }
  const std::vector<size_t> others = calls_.CallsWithout(session);
  calls_.Abandon(session);
  Worker& worker = w_.worker(0);
  worker.exchange.SessionDead(session, absl::UnavailableError("killed"),
                              process_alive && !w_.Is(Sabotage::kForgetProcess), w_.now);
  for (size_t i = 1; w_.Is(Sabotage::kSpreadDeath) && i < others.size(); ++i) {
    // One whose peer has a call open, too.
    const Call& victim = w_.calls[others[i - 1]];
    const Call& peer = w_.calls[others[i]];
    if (victim.group != peer.group || victim.session == peer.session || !peer.open()) continue;
    worker.exchange.SessionDead(victim.session, absl::UnavailableError("killed"), false, w_.now);
    break;
  }
  const bool quiet = std::exchange(w_.quiet, true);  // No commit fails.
  w_.Perform(worker);
  w_.quiet = quiet;
  w_.Happens(&worker, Dies{others});
}

void Callers::EndProcesses() {
  for (const SessionId session : std::exchange(w_.lingering, {})) {
    w_.worker(0).exchange.SessionDead(session, absl::UnavailableError("gone"), false, w_.now);
    w_.Perform(w_.worker(0));
  }
}

// ---- epd ----

void Callers::Control(Group& group) {
  if (group.ended && w_.num_workers() == 1) return FormAnew(group);
  if (group.ended) {
    // What is broken ends on one worker after the other; it is formed anew when all calls are over.
    if (IsIdle(group)) {
      SetBases(group);
      return w_.Form(group);
    }
    const int at = static_cast<int>(w_.Roll(static_cast<uint64_t>(w_.num_workers())));
    if (w_.OneIn(8)) w_.End(group, at, absl::AbortedError("formed anew"));
  } else if (w_.num_workers() == 1 && w_.Chance(8)) {
    group.ended = true;  // Drained and then formed anew.
    w_.worker(0).exchange.DrainTenant(group.id, epd::Formation(group.formation), w_.now);
    w_.Perform(w_.worker(0));
  }
}

bool Callers::IsIdle(const Group& group) const {
  return std::none_of(w_.running.begin(), w_.running.end(),
                      [&](size_t running) { return w_.calls[running].group == &group; });
}

// A member died, perhaps: its rank gets a new session, the others a base by the cut-off.
void Callers::FormAnew(Group& group) {
  w_.End(group, 0, absl::UnavailableError("a member died"));
  std::vector<Coming> late = LateCalls(group);
  SetBases(group);
  for (uint32_t r = 0; r < group.spec.num_ranks; ++r) {
    if (w_.alive.contains(group.members[r])) continue;
    group.members[r] = NewSession();
    w_.alive.insert(group.members[r]);
    w_.worker(0).exchange.AddSession(group.members[r]);
    runs_[group.id][r].assign(kMaxPrograms, ProgramRun());
    failed_.erase({group.id, r});
  }
  w_.Form(group);
  for (Coming& coming : late) {
    if (w_.Is(Sabotage::kForgetEnded)) coming.request.formation = group.formation;
    Announce(std::move(coming));
  }
}

void Callers::SetBases(Group& group) {
  std::vector<ExecutionCount> counts;
  std::vector<Rank> staying;
  for (uint32_t r = 0; r < group.spec.num_ranks; ++r) {
    if (!w_.alive.contains(group.members[r])) continue;
    staying.push_back(Rank(r));
    const bool failed = failed_.contains({group.id, r});
    for (uint8_t p = 0; p < kMaxPrograms; ++p) {
      ProgramRun& run = RunOf(group, r, p);
      counts.push_back({Rank(r), IdOf(p), run.begun, failed});
      run.num_cut = failed ? 1 : 0;
    }
  }
  group.bases = CutOff(counts, group.bases, staying).value();
  if (w_.Is(Sabotage::kForgetBases)) group.bases.clear();
  if (w_.Is(Sabotage::kFarBases) && !group.bases.empty()) group.bases.front().base += 2;
  diverged_.erase(group.id);
  for (std::vector<ProgramRun>& runs : runs_[group.id]) {
    for (ProgramRun& run : runs) run.own = run.skipped = run.skipped_before = 0;
  }
}

// Of ranks that stay and do not know yet that the formation has ended: some come before the next one has begun, the others
// are returned.
std::vector<Callers::Coming> Callers::LateCalls(Group& group) {
  std::vector<Coming> late;
  for (uint32_t rank = 0; rank < group.spec.num_ranks; ++rank) {
    if (!w_.alive.contains(group.members[rank]) || w_.Chance(50)) continue;
    auto coming = NextCall(group, rank, PickProgram());
    if (!coming.has_value()) continue;
    if (w_.Chance(50)) {
      Announce(*std::move(coming));
    } else {
      late.push_back(*std::move(coming));
    }
  }
  return late;
}

// ---- the end ----

// Groups close, living clients finish their calls, lingering processes go.
void Callers::EndEverything() {
  for (Group& group : w_.groups) {
    group.ended = true;
    w_.End(group, 0, absl::UnavailableError("the end"));
  }
  w_.DeliverEverything();
  for (size_t i = 0; i < w_.calls.size(); ++i) {
    while (!w_.calls[i].dead && w_.calls[i].holds()) calls_.NextStep(i);
  }
  EndProcesses();
  w_.Happens(nullptr, Rests());
}

// Everything comes to its end by itself, without faults and without deadlines: ranks catch up with the one that is furthest.
void Callers::LetEverythingEnd() {
  constexpr int kPatience = 3000;
  w_.quiet = true;
  for (int idle = 0, busy = 0; idle < kPatience && !w_.broken(); ++idle) {
    const bool called = CatchUp();
    const bool delivered = w_.DeliverEverything();
    for (Group& group : w_.groups) {
      if (group.ended) Control(group);
    }
    if ((called || delivered) && ++busy < kPatience) idle = 0;
    if (idle < 100) continue;
    w_.now += absl::Milliseconds(1);  // A worker waits a little for its leader's word.
    w_.Tick();
    w_.StepEnds();
  }
  std::string waiting;
  for (const size_t running : w_.running) {
    const Call& call = w_.calls[running];
    absl::StrAppend(&waiting, waiting.empty() ? "" : ", ", "rank ", call.rank, " of group ",
                    call.group->id.value, " waits in state ", static_cast<int>(call.state));
  }
  w_.Happens(nullptr, Rests{waiting});
}

bool Callers::CatchUp() {
  bool busy = false;
  for (const size_t running : std::set<size_t>(w_.running)) {
    if (!w_.calls[running].holds()) continue;
    calls_.NextStep(running);
    busy = true;
  }
  for (Group& group : w_.groups) {
    for (uint8_t p = kMaxPrograms - num_programs_; p < kMaxPrograms && !group.ended; ++p) {
      const auto number = [&](uint32_t r) {
        return static_cast<int64_t>(RunOf(group, r, p).begun - group.BaseOf(r, p));
      };
      int64_t furthest = 0;
      for (uint32_t r = 0; r < group.spec.num_ranks; ++r) furthest = std::max(furthest, number(r));
      for (uint32_t r = 0; r < group.spec.num_ranks; ++r) {
        if (number(r) >= furthest || RunOf(group, r, p).num_running > 0) continue;
        if (auto coming = NextCall(group, r, p)) Announce(*std::move(coming));
        busy = true;
      }
    }
  }
  return busy;
}

}  // namespace epd::world
