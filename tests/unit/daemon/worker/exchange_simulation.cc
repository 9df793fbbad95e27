#include "tests/unit/daemon/worker/exchange_simulation.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/worker/exchange.h"

namespace epd {
namespace {

constexpr absl::Duration kAbsent = absl::Seconds(60);
constexpr absl::Duration kUndecided = absl::Seconds(30);
constexpr absl::Duration kHold = absl::Seconds(30);
constexpr uint32_t kNumPrograms = 3;  // The last one is a name.
constexpr uint32_t kOrdinals = 3;     // Operations of one execution.

enum class CallState { kAnnounced, kCopying, kPublished, kReading, kPulled, kEnded };

// Identity as the ranks see it; equal ones must end alike.
using Identity = std::tuple<uint64_t, uint64_t, uint32_t, uint64_t, uint32_t>;

struct Call {
  size_t group = 0;
  uint64_t formation = 0;
  uint32_t rank = 0;
  SessionId session;
  uint32_t program = 0;
  Identity identity;
  CallState state = CallState::kAnnounced;
  Use use;
  OperationId operation;
  ArenaSetId set;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  absl::Time since;
  bool dead = false;  // Its session is.

  bool open() const {
    return state == CallState::kAnnounced || state == CallState::kPublished ||
           state == CallState::kPulled;
  }
  bool holds() const { return state == CallState::kCopying || state == CallState::kReading; }
};

// One program on one rank: its executions one after the other, their operations in the rank's own
// order.
struct Lane {
  uint64_t raw = 0;                // Of the running execution.
  uint64_t begun = 0;              // One above the highest.
  std::vector<uint32_t> ordinals;  // Still to issue in this execution.
  int num_running = 0;
};

struct SimGroup {
  GroupSpec spec;
  uint64_t formation = 0;
  std::vector<SessionId> members;
  std::vector<std::vector<Lane>> lanes;      // [rank][program]
  std::vector<std::vector<uint64_t>> bases;  // [rank][program]
  ArenaSetId set;
  bool broken = false;
  bool drained = false;
};

struct Ending {
  bool good = false;
  std::string cause;
};

std::string WithoutPlace(absl::string_view text) {
  const size_t colon = text.find(": ");
  return std::string(colon == absl::string_view::npos ? text : text.substr(colon + 2));
}

class Simulation {
 public:
  Simulation(uint64_t seed, Sabotage sabotage)
      : random_(seed),
        sabotage_(sabotage),
        exchange_({.staging_bytes = 16 * 4096 * (1 + Roll(4)), .hold_limit = kHold}) {}

  SimulationResult Run(int num_events);

 private:
  uint64_t Roll(uint64_t sides) { return random_() % sides; }
  bool Chance(int percent) { return Roll(100) < static_cast<uint64_t>(percent); }
  bool Is(Sabotage s) const { return sabotage_ == s; }
  void Violate(const std::string& what) {
    if (result_.violation.empty()) result_.violation = absl::StrCat("step ", step_, ": ", what);
  }

  // The world.
  SessionId NewSession();
  void AddGroup();
  void Form(SimGroup& group);
  void Break(SimGroup& group);
  void StepWorld();
  void BeginCall();
  void Refill(Lane& lane, uint32_t program);
  void Announce(size_t g, uint32_t rank, uint32_t program, uint32_t ordinal);
  void GoOn();
  void NextUse(Call& call);
  void KillSession();
  void Kill(SessionId session, bool process_alive);
  void Hostile();
  void FinishMoves(bool all);
  void Advance(absl::Duration by);
  void Finish();
  Use NewUse(SessionId session) { return Use{session, 0, ++claim_}; }

  // The engine's effects.
  void Perform();
  void Do(const LinkUse&) {}
  void Do(const OpenRecord& e);
  void Do(const DecideRecord& e);
  void Do(const CloseRecord& e);
  void Do(const AnswerUse& e);
  void Do(const CommitPages& e);
  void Do(const CreateArenas& e) { arenas_.insert(e.set); }
  void Do(const DropArenas& e);
  void Do(const ReportTenantReady& e);
  void Do(const ReportTenantDrained&) {}
  void Do(const MoveRows& e) { moving_.push_back(e.operation); }
  void Do(const CountRoutes&) {}
  void Do(const EvictSession& e) { evicted_.insert(e.session); }
  void Do(const LogLine&) {}
  void TakeAnswer(Call& call, const AnswerUse& answer);
  void TakeRegion(Call& call, const AnswerUse& answer);
  void EndCall(Call& call, const absl::Status& status);

  // The invariants.
  void CheckWaits();
  void CheckEnd();

  std::mt19937_64 random_;
  const Sabotage sabotage_;
  Exchange exchange_;
  SimulationResult result_;
  int step_ = 0;
  absl::Time now_ = absl::UnixEpoch();
  const uint64_t num_programs_ = 1 + Roll(kNumPrograms);
  uint64_t next_session_ = 1;
  uint32_t claim_ = 1;
  std::set<SessionId> alive_;
  std::set<SessionId> lingering_;  // Dead sessions whose process lives.
  std::set<SessionId> evicted_;
  std::set<std::pair<uint64_t, uint32_t>> frozen_;  // Ranks of groups that do nothing for now.
  std::vector<SimGroup> groups_;
  std::vector<Call> calls_;
  std::map<Use, size_t> call_of_;
  std::set<Use> stray_;  // Hostile uses that are not answered yet.
  std::map<OperationId, Ending> decided_;
  std::set<OperationId> records_;
  std::map<Identity, Ending> endings_;
  std::map<OperationId, std::tuple<ArenaSetId, uint64_t, uint64_t>> regions_;
  std::vector<OperationId> moving_;
  std::set<ArenaSetId> arenas_;
  std::map<ArenaSetId, std::vector<SessionId>> sessions_of_;
};

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
  // Later groups share sessions, and so arenas, with the first.
  for (uint32_t r = 0; r < group.spec.num_ranks; ++r) {
    const bool share = !groups_.empty() && r < groups_[0].members.size();
    group.members.push_back(share ? groups_[0].members[r] : NewSession());
  }
  group.lanes.assign(group.spec.num_ranks, std::vector<Lane>(kNumPrograms));
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
    start.members.push_back(Placement{.rank = Rank(r),
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
  if (!exchange_.StartTenant(start, now_).ok()) Violate("a sound tenant was refused");
}

// A member died: its rank gets a new session, the others a base by the cut-off.
void Simulation::Break(SimGroup& group) {
  const auto index = static_cast<uint64_t>(&group - groups_.data());
  exchange_.EndTenant(GroupId(1 + index), Formation(group.formation),
                      absl::UnavailableError("a member died"), now_);
  Perform();
  for (uint32_t p = 0; p < kNumPrograms; ++p) {
    uint64_t highest = 0;
    for (uint32_t r = 0; r < group.spec.num_ranks; ++r) {
      if (!alive_.contains(group.members[r])) continue;
      const uint64_t begun = group.lanes[r][p].begun;
      highest = std::max(highest, begun > group.bases[r][p] ? begun - group.bases[r][p] : 0);
    }
    for (uint32_t r = 0; r < group.spec.num_ranks; ++r) group.bases[r][p] += highest;
  }
  for (uint32_t r = 0; r < group.spec.num_ranks; ++r) {
    if (alive_.contains(group.members[r])) continue;
    group.members[r] = NewSession();
    group.lanes[r].assign(kNumPrograms, Lane());
    group.bases[r].assign(kNumPrograms, 0);
  }
  Form(group);
}

void Simulation::Refill(Lane& lane, uint32_t program) {
  if (lane.num_running > 0 || !lane.ordinals.empty()) return;
  lane.raw = lane.begun++;
  const bool named = program + 1 == kNumPrograms;
  for (uint32_t o = 0; o < (named ? 1 : kOrdinals); ++o) lane.ordinals.push_back(o);
  std::shuffle(lane.ordinals.begin(), lane.ordinals.end(), random_);
}

void Simulation::BeginCall() {
  const size_t g = Roll(groups_.size());
  SimGroup& group = groups_[g];
  const auto rank = static_cast<uint32_t>(Roll(group.spec.num_ranks));
  // Calls of a broken group fail at once and say little.
  if ((group.broken || group.lanes.empty()) && Chance(90)) return Break(group);
  const auto program = static_cast<uint32_t>(kNumPrograms - 1 - Roll(num_programs_));
  if (!alive_.contains(group.members[rank]) || frozen_.contains({g, rank})) return;
  Lane& lane = group.lanes[rank][program];
  Refill(lane, program);
  if (lane.ordinals.empty()) return;
  const uint32_t ordinal = lane.ordinals.back();
  lane.ordinals.pop_back();
  Announce(g, rank, program, ordinal);
}

void Simulation::Announce(size_t g, uint32_t rank, uint32_t program, uint32_t ordinal) {
  SimGroup& group = groups_[g];
  Lane& lane = group.lanes[rank][program];
  ++lane.num_running;
  shm::SlotRequest request = {};
  request.step = shm::Step::kAnnounce;
  request.kind = shm::Kind::kDispatch;
  request.group_id = 1 + g;
  request.epoch = 1;
  request.formation = group.formation;
  request.rank = rank;
  request.program[0] = static_cast<uint8_t>(program);
  request.has_name = program + 1 == kNumPrograms;
  request.execution = lane.raw;
  request.ordinal = ordinal;
  request.dtype = 1;
  request.row_bytes = 32;
  request.plan_id = 1;
  const bool rough = Chance(3);
  request.top_k = rough && Chance(25) ? 2 : 1;   // Now and then a rank disagrees,
  request.demand = rough && Chance(25) ? 9 : 1;  // overflows,
  request.recv_capacity = 8;
  request.error_code = rough && Chance(25) ? 3 : 0;  // or has bad input.
  request.stage_bytes = rough && Chance(25) ? 1 << 30 : 4096 * Roll(4);
  Call call{
      .group = g,
      .formation = group.formation,
      .rank = rank,
      .session = group.members[rank],
      .program = program,
      .identity = {g, group.formation, program, lane.raw - group.bases[rank][program], ordinal},
      .state = CallState::kAnnounced,
      .use = NewUse(group.members[rank]),
      .operation = {},
      .set = group.set,
      .since = now_};
  if (lane.raw < group.bases[rank][program]) std::get<1>(call.identity) = 0;  // Of no formation.
  call_of_[call.use] = calls_.size();
  calls_.push_back(call);
  exchange_.Take(call.use, request, now_);
}

void Simulation::GoOn() {
  std::vector<size_t> ready;
  for (size_t i = 0; i < calls_.size(); ++i) {
    const Call& call = calls_[i];
    if (call.holds() && !call.dead && !frozen_.contains({call.group, call.rank}))
      ready.push_back(i);
  }
  if (ready.empty()) return BeginCall();
  NextUse(calls_[ready[Roll(ready.size())]]);
}

void Simulation::NextUse(Call& call) {
  shm::SlotRequest request = {};
  request.step = call.state == CallState::kCopying ? shm::Step::kPublish : shm::Step::kPulled;
  request.rank = call.rank;
  request.op_id = call.operation.value;
  if (request.step == shm::Step::kPublish && Chance(1)) request.error_code = 15;
  call.state = request.step == shm::Step::kPublish ? CallState::kPublished : CallState::kPulled;
  call.use = NewUse(call.session);
  call.since = now_;
  call_of_[call.use] = static_cast<size_t>(&call - calls_.data());
  exchange_.Take(call.use, request, now_);
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
  exchange_.SessionDead(session, absl::UnavailableError("killed"),
                        process_alive && !Is(Sabotage::kForgetProcess), now_);
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
  request.op_id = Roll(200);
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
    return call.session == session && call.operation.value == request.op_id;
  });
  if (request.step != shm::Step::kAnnounce && of_honest_rank) return;
  const Use use = NewUse(session);
  stray_.insert(use);
  exchange_.Take(use, request, now_);
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

void Simulation::Do(const OpenRecord& e) {
  if (!records_.insert(e.operation).second || decided_.contains(e.operation)) {
    Violate("an operation id was used twice");
  }
}

void Simulation::Do(const DecideRecord& e) {
  if (!records_.contains(e.operation)) Violate("an outcome without a record");
  const Ending ending{.good = e.status.ok(), .cause = std::string(e.status.message())};
  if (!decided_.emplace(e.operation, ending).second) Violate("an outcome was decided twice");
}

void Simulation::Do(const CloseRecord& e) {
  if (Is(Sabotage::kLoseRecord) && Chance(20)) return;
  if (records_.erase(e.operation) == 0) Violate("a record was given back twice");
  regions_.erase(e.operation);
}

void Simulation::Do(const CommitPages& e) {
  exchange_.PagesCommitted(
      e.operation,
      Chance(97) ? absl::OkStatus() : absl::ResourceExhaustedError("the node has no memory"), now_);
}

void Simulation::Do(const DropArenas& e) {
  arenas_.erase(e.set);
  for (const SessionId session : sessions_of_[e.set]) {
    if (lingering_.contains(session)) Violate("arenas were dropped that a process still writes");
  }
  for (const Call& call : calls_) {
    if (!call.dead && call.holds() && call.set == e.set) {
      Violate("arenas were dropped that a client may touch");
    }
  }
}

void Simulation::Do(const ReportTenantReady& e) {
  SimGroup& group = groups_[e.group.value - 1];
  sessions_of_[e.set] = group.members;
  group.set = e.set;
  if (!arenas_.contains(e.set)) Violate("a tenant is ready without arenas");
}

void Simulation::Do(const AnswerUse& e) {
  if (stray_.erase(e.use) > 0) return;
  const auto found = call_of_.find(e.use);
  if (found == call_of_.end()) return Violate("a use was answered that is not open");
  Call& call = calls_[found->second];
  call_of_.erase(found);
  if (!call.dead) TakeAnswer(call, e);
}

void Simulation::TakeAnswer(Call& call, const AnswerUse& answer) {
  if (!answer.status.ok()) {
    if (answer.operation) {
      const auto decided = decided_.find(answer.operation);
      if (decided == decided_.end()) return Violate("an error before the record of the outcome");
      if (decided->second.good) return Violate("an error although the outcome is good");
    }
    if (call.state == CallState::kPulled) return Violate("a pulled was answered with an error");
    return EndCall(call, answer.status);
  }
  switch (call.state) {
    case CallState::kAnnounced:
      return TakeRegion(call, answer);
    case CallState::kPublished: {
      const auto decided = decided_.find(answer.operation);
      if (decided == decided_.end() || !decided->second.good) {
        Violate("a good answer without a good outcome on record");
      }
      call.state = CallState::kReading;
      return;
    }
    default:
      return EndCall(call, absl::OkStatus());
  }
}

void Simulation::TakeRegion(Call& call, const AnswerUse& answer) {
  call.state = CallState::kCopying;
  call.operation = answer.operation;
  call.offset = answer.region.offset;
  call.bytes = answer.region.bytes;
  for (const SessionId session : exchange_.staging().SessionsOf(call.set)) {
    if (lingering_.contains(session)) Violate("arenas of a lingering process were given away");
  }
  const auto overlaps = [&](ArenaSetId set, uint64_t offset, uint64_t bytes) {
    return set == call.set && offset < call.offset + call.bytes && call.offset < offset + bytes;
  };
  for (const auto& [operation, region] : regions_) {
    const auto& [set, offset, bytes] = region;
    if (operation != call.operation && overlaps(set, offset, bytes)) {
      Violate("two open operations share a region");
    }
  }
  for (const Call& other : calls_) {
    if (!other.dead && other.holds() && other.operation != call.operation &&
        overlaps(other.set, other.offset, other.bytes)) {
      Violate("a region was given away while a client may touch it");
    }
  }
  regions_[call.operation] = {call.set, call.offset, call.bytes};
}

void Simulation::EndCall(Call& call, const absl::Status& status) {
  call.state = CallState::kEnded;
  ++(status.ok() ? result_.num_good : result_.num_failed);
  SimGroup& group = groups_[call.group];
  Lane& lane = group.lanes[call.rank][call.program];
  if (call.session == group.members[call.rank]) {
    --lane.num_running;
    if (!status.ok()) lane.ordinals.clear();  // The execution is over on this rank.
  }
  if (std::get<1>(call.identity) == 0) return;
  const Ending ending{.good = status.ok(), .cause = WithoutPlace(status.message())};
  const auto [other, first] = endings_.emplace(call.identity, ending);
  if (first) return;
  if (other->second.good != ending.good) Violate("good on one rank and failed on another");
  if (other->second.cause != ending.cause) {
    Violate(absl::StrCat("two causes: '", other->second.cause, "' and '", ending.cause, "'"));
  }
}

void Simulation::Perform() {
  for (Effects effects = exchange_.TakeEffects(); !effects.empty();
       effects = exchange_.TakeEffects()) {
    if (Is(Sabotage::kAnswerUndecided)) {
      std::stable_partition(effects.begin(), effects.end(),
                            [](const Effect& e) { return std::holds_alternative<AnswerUse>(e); });
    }
    for (Effect& effect : effects) {
      if (auto* answer = std::get_if<AnswerUse>(&effect); answer != nullptr && answer->operation) {
        if (Is(Sabotage::kDropAnswer) && Chance(5)) continue;
        if (Is(Sabotage::kDoubleAnswer) && Chance(5)) Do(*answer);
        if (Is(Sabotage::kFlipOutcome) && Chance(5)) answer->status = absl::InternalError("x: y");
        if (Is(Sabotage::kOtherCause) && !answer->status.ok() && Chance(20)) {
          answer->status = absl::InternalError("x: another cause");
        }
        if (Is(Sabotage::kSharedRegion)) answer->region.offset = 0;
      }
      if (const auto* decide = std::get_if<DecideRecord>(&effect);
          decide != nullptr && Is(Sabotage::kDecideTwice) && Chance(20)) {
        Do(*decide);
      }
      if (Is(Sabotage::kKeepArenas) && std::holds_alternative<DropArenas>(effect)) continue;
      std::visit([this](const auto& one) { Do(one); }, effect);
    }
  }
  while (!evicted_.empty()) {
    const SessionId session = *evicted_.begin();
    evicted_.erase(evicted_.begin());
    if (alive_.contains(session)) Kill(session, Chance(50));
    Perform();
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
      NextUse(calls_[i]);
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
  for (const Use& use : stray_) {
    if (alive_.contains(use.session)) return Violate("a hostile claim was never answered");
  }
  if (exchange_.num_open_operations() != 0) Violate("operations are open after the end");
  if (exchange_.staging().pool().in_use_bytes() != 0) Violate("regions did not come back");
  if (!records_.empty()) Violate("records did not come back");
  if (!arenas_.empty()) Violate("arenas did not come back");
}

SimulationResult Simulation::Run(int num_events) {
  const size_t num_groups = 1 + Roll(2);
  groups_.reserve(num_groups);
  for (size_t g = 0; g < num_groups; ++g) {
    AddGroup();
    Perform();
  }
  calls_.reserve(static_cast<size_t>(num_events) + 1);
  for (step_ = 1; step_ <= num_events && result_.violation.empty(); ++step_) {
    StepWorld();
    Perform();
    CheckWaits();
  }
  if (result_.violation.empty()) Finish();
  return result_;
}

}  // namespace

SimulationResult SimulateExchange(uint64_t seed, int num_events, Sabotage sabotage) {
  return Simulation(seed, sabotage).Run(num_events);
}

}  // namespace epd
