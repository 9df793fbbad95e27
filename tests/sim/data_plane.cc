#include "tests/sim/data_plane.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "tests/unit/daemon/worker/world/make_request.h"

namespace epd::sim {
namespace {

constexpr uint64_t kPage = 4096;
// Room for a few operations of a rank, so that groups wait for each other.
constexpr uint64_t kStaging = 160 * kPage;
constexpr absl::Duration kStream = absl::Milliseconds(5);     // Between workers,
constexpr absl::Duration kRowsTake = absl::Milliseconds(50);  // and rows, or a copy.
constexpr absl::Duration kLateBy = absl::Seconds(4);          // These, and a leader's last word.
// Until a stream's other end is missed.
constexpr absl::Duration kNoticed = absl::Milliseconds(800);
constexpr absl::Duration kSweep = absl::Milliseconds(20);  // epd's, over a dead worker's calls.
constexpr absl::Duration kSlow = absl::Seconds(12);
constexpr absl::Duration kLingers = absl::Seconds(6);
constexpr absl::Duration kInCalls =
    absl::Milliseconds(50);  // Of ranks that call without the worker.

using State = world::Call::State;

world::WorldOptions OptionsOf(int num_workers) {
  world::WorldOptions options{.num_workers = num_workers,
                              .per_mille_of_moves_fail = 5,
                              .pages_take_time = true,
                              .late_by = kLateBy};
  options.engine = {.staging_bytes = kStaging, .eager = {.few_buffers = 0, .max_buffers = 0}};
  return options;
}

}  // namespace

DataPlane::DataPlane(int num_workers, uint64_t seed, world::Sabotage sabotage, Edge edge)
    : edge_(std::move(edge)),
      w_(OptionsOf(num_workers), seed, sabotage),
      calls_(w_),
      processes_(static_cast<size_t>(num_workers)) {
  w_.on_report = [this](world::Worker& worker, const Effect& e) { Report(worker.index, e); };
  w_.on_under_way = [this](world::UnderWay what, int from, int to) {
    edge_.later(what == world::UnderWay::kMessage ? kStream : kRowsTake, [this, what, from, to] {
      WhenRunning(to, [this, what, from, to] {
        if (what == world::UnderWay::kMessage) w_.DeliverMessage(from, to);
        if (what == world::UnderWay::kRows) w_.DeliverRows(from, to);
        if (what == world::UnderWay::kMove) w_.AdvanceMove(to);
        if (what == world::UnderWay::kPages) w_.MakePages(to);
      });
    });
  };
  w_.on_unreachable = [this](int from, Incarnation peer) {
    edge_.later(kNoticed, [this, from, run = w_.worker(from).run, peer] {
      WhenRunning(from, [this, from, run, peer] {
        if (w_.worker(from).run == run)
          w_.LosePeer(from, peer, absl::UnavailableError("nobody answers there"));
      });
    });
  };
  calls_.on_hold = [this](size_t index) {
    const bool slow = edge_.is_slow(w_.calls[index].session);
    edge_.later(slow ? kSlow : kRowsTake, [this, index] { Step(index); });
  };
  calls_.on_end = [this](const world::Call& call, const absl::Status& status) {
    CheckOutcome(call, status);
    edge_.ended(call, status);
  };
}

void DataPlane::Fail(const std::string& invariant, const std::string& what) {
  if (violation_.empty()) violation_ = absl::StrCat(invariant, ": ", what);
}

std::string DataPlane::violation() const {
  if (!violation_.empty() || !w_.broken()) return violation_;
  return absl::StrCat(w_.violation().invariant, ": ", w_.violation().what);
}

void DataPlane::Later(int worker, std::function<void()> what) {
  Process& to = process(worker);
  to.last_told = std::max(to.last_told, w_.now + absl::Microseconds(1 + w_.Roll(20'000)));
  edge_.at(to.last_told, [this, worker, run = to.num_runs, what = std::move(what)] {
    WhenRunning(worker, [this, worker, run, what] {
      if (process(worker).num_runs == run && process(worker).up) what();
    });
  });
}

void DataPlane::WhenRunning(int worker, std::function<void()> what) {
  Process& to = process(worker);
  if (w_.now < to.stopped_until) {
    return edge_.at(to.stopped_until,
                    [this, worker, what = std::move(what)] { WhenRunning(worker, what); });
  }
  what();
  w_.StepEnds(&w_.worker(worker));
}

// ---- processes ----

void DataPlane::StartWorker(int worker, Incarnation run, const std::set<SessionId>& sessions) {
  Process& started = process(worker);
  ExchangeOptions engine = w_.options().engine;
  engine.self = run;
  engine.first_operation_id = 1 + (++started.num_runs << 20);
  started.up = true;
  started.stopped_until = absl::InfinitePast();
  w_.NewRun(worker, engine).direct_busy = true;
  for (const SessionId session : sessions) w_.worker(worker).exchange.AddSession(session);
}

void DataPlane::KillWorker(int worker, const absl::Status& why) {
  Process& killed = process(worker);
  if (!killed.up) return;
  killed.up = false;
  for (world::Group& group : w_.groups) {
    if (group.workers().contains(worker)) group.ended = group.leader_lost = true;
  }
  for (const size_t index : std::set<size_t>(w_.running)) {
    w_.touching.erase(index);
    const world::Call& call = w_.calls[index];
    if (call.worker() == worker && call.open()) EndsByRecord(index, why);
  }
  const Incarnation run = w_.worker(worker).run;
  ExchangeOptions nobody = w_.options().engine;
  nobody.self = Incarnation(1 + static_cast<uint64_t>(worker));
  w_.NewRun(worker, nobody);
  for (int peer = 0; peer < w_.num_workers(); ++peer) {
    if (peer != worker && process(peer).up) w_.on_unreachable(peer, run);
  }
}

// What epd finds in the dead worker's records, as daemon/node/workers/poisoner.h has it.
void DataPlane::EndsByRecord(size_t index, const absl::Status& why) {
  const world::Call& call = w_.calls[index];
  const world::Worker& worker = w_.worker(call.worker());
  absl::Status status = why;
  const auto link = worker.links.find(call.submission);
  if (call.state == State::kPulled) {
    status = absl::OkStatus();  // It was told so when it published.
  } else if (link != worker.links.end()) {
    const auto decided = worker.decided.find(link->second);
    const bool known = decided != worker.decided.end();
    if (known && (!decided->second.ok() || call.state == State::kPublished))
      status = decided->second;
  }
  w_.call_of.erase(call.submission);
  edge_.later(kSweep, [this, index, status] {
    if (w_.running.contains(index)) calls_.End(index, status);
  });
}

void DataPlane::StopWorker(int worker, absl::Time until) {
  Process& stopped = process(worker);
  if (!stopped.up || w_.now < stopped.stopped_until) return;
  stopped.stopped_until = until;
  for (world::Group& group : w_.groups) {  // It may say nothing of what it has decided.
    if (!group.ended && group.worker_of[0] == worker) group.leader_lost = true;
  }
  for (const size_t running : w_.running) {  // Nobody can answer them in time.
    world::Call& call = w_.calls[running];
    if (call.group->workers().contains(worker)) call.since += until - w_.now;
  }
}

void DataPlane::Cut(int a, int b) {
  if (process(a).up && process(b).up) w_.LosePeerStream(a, b);
}

void DataPlane::AddSession(const std::vector<int>& workers, SessionId session) {
  w_.alive.insert(session);
  for (const int worker : workers) {
    Later(worker, [this, worker, session] { w_.worker(worker).exchange.AddSession(session); });
  }
}

void DataPlane::EndSession(const std::vector<int>& workers, SessionId session, bool process_alive) {
  if (w_.alive.erase(session) == 0) return;
  calls_.Abandon(session);
  if (process_alive && !leavers_.contains(session)) lingered_.insert(session);
  // What a worker does before it has heard is right.
  auto num_told = std::make_shared<size_t>(0);
  auto is_gone = std::make_shared<bool>(!process_alive);
  const auto tell = [this, workers, session, num_told, is_gone](bool alive, const char* why) {
    for (const int worker : workers) {
      Later(worker, [this, num = workers.size(), worker, session, num_told, is_gone, alive, why] {
        const std::vector<size_t> others = calls_.CallsWithout(session);
        world::Worker& hears = w_.worker(worker);
        hears.exchange.SessionDead(session, absl::UnavailableError(why), alive, w_.now);
        w_.Perform(hears);
        w_.Happens(&hears, world::Dies{others});
        if (++*num_told == num && !*is_gone) w_.lingering.insert(session);
      });
    }
  };
  tell(process_alive, "killed");
  if (!process_alive) return;
  edge_.later(kLingers, [this, session, is_gone, tell] {
    *is_gone = true;
    w_.lingering.erase(session);
    tell(false, "gone");
  });
}

void DataPlane::CheckLeavers() {
  if (leavers_.empty() || !violation_.empty()) return;
  for (int i = 0; i < w_.num_workers(); ++i) {
    const Staging& staging = w_.worker(i).exchange.staging();
    for (const StagingPool::SetStatus& set : staging.pool().Sets()) {
      if (set.quarantined_bytes == 0) continue;
      const std::vector<SessionId> sessions = staging.SessionsOf(set.id);
      const auto lingered = [this](SessionId session) { return lingered_.contains(session); };
      if (std::any_of(sessions.begin(), sessions.end(), lingered)) continue;
      Fail("left_nothing", absl::StrCat("worker ", i, " keeps ", set.quarantined_bytes,
                                        " bytes of sessions that have left"));
    }
  }
}

// ---- what epd tells a worker ----

world::Group& DataPlane::Know(const StartTenant& effect) {
  // A coordinator that comes after one whose formation no session was told of gives out its number again, in a later epoch.
  world::Group* const known = w_.FindGroup(effect.group, effect.formation);
  if (known != nullptr && known->epoch >= effect.epoch.value) return *known;
  world::Group group;
  group.id = effect.group;
  group.spec = effect.spec;
  group.epoch = effect.epoch.value;
  group.formation = effect.formation.value;
  group.bases = effect.bases.items();
  for (const RankHolder& member : effect.members) {
    group.worker_of.push_back(edge_.index_of(member.server()));
    group.members.push_back(member.session);
  }
  ++w_.num_formations;
  return w_.AddFormation(std::move(group));
}

void DataPlane::Tell(int worker, const NodeId& self, const StartTenant& effect) {
  Know(effect);
  Later(worker, [this, worker, self, effect] { Start(worker, self, effect); });
}

// As the effect's codec and the worker's have it: sessions of other workers' ranks are not said.
void DataPlane::Start(int worker, const NodeId& self, const StartTenant& effect) {
  TenantStart start{.group = effect.group,
                    .epoch = effect.epoch,
                    .formation = effect.formation,
                    .spec = effect.spec,
                    .members = effect.members.items(),
                    .bases = effect.bases.items(),
                    .base_cause = effect.base_cause,
                    .communicator = effect.communicator};
  for (RankHolder& member : start.members) {
    if (member.server() != WorkerId{self, effect.to}) member.session = SessionId();
  }
  for (const ServingWorker& place : effect.workers) {
    start.nodes.push_back({.name = place.node,
                           .worker = place.worker,
                           .address = place.wire_address,
                           .worker_name = place.name});
  }
  world::Worker& starts = w_.worker(worker);
  const absl::Status status = starts.exchange.StartTenant(std::move(start), w_.now);
  w_.Perform(starts);
  if (!status.ok())
    edge_.tell_epd(worker, TenantFailed{{}, effect.group, effect.formation, status});
}

void DataPlane::Tell(int worker, const EndTenant& effect) {
  Later(worker, [this, worker, effect] {
    if (world::Group* const group = w_.FindGroup(effect.group, effect.formation))
      group->ended = true;
    w_.worker(worker).exchange.EndTenant(effect.group, effect.formation, effect.status, w_.now);
    w_.Perform(w_.worker(worker));
  });
}

void DataPlane::Tell(int worker, const DrainTenant& effect) {
  Later(worker, [this, worker, effect] {
    w_.worker(worker).exchange.DrainTenant(effect.group, effect.formation, w_.now);
    w_.Perform(w_.worker(worker));
  });
}

void DataPlane::Report(int worker, const Effect& effect) {
  if (const auto* e = std::get_if<ReportTenantReady>(&effect))
    return edge_.tell_epd(worker, TenantReady{{}, e->group, e->formation});
  if (const auto* e = std::get_if<ReportTenantDrained>(&effect))
    return edge_.tell_epd(worker, TenantDrained{{}, e->group, e->formation});
  if (const auto* e = std::get_if<ReportTenantBroken>(&effect))
    return edge_.tell_epd(worker, TenantBroken{{}, e->group, e->formation, e->cause});
  if (const auto* e = std::get_if<EvictSession>(&effect)) edge_.evict(e->session);
  if (const auto* e = std::get_if<AwaitDirect>(&effect)) AwaitRanks(worker, *e);
}

void DataPlane::AwaitRanks(int worker, const AwaitDirect& effect) {
  edge_.later(kInCalls, [this, worker, run = process(worker).num_runs, effect] {
    WhenRunning(worker, [this, worker, run, effect] {
      if (process(worker).num_runs != run || !process(worker).up) return;
      w_.worker(worker).exchange.DirectIdle(effect.group, effect.formation, w_.now);
      w_.Perform(w_.worker(worker));
    });
  });
}

// ---- ranks ----

void DataPlane::Call(const RankCall& call) {
  const world::Group& group = *w_.FindGroup(call.group, call.formation);
  WhenRunning(group.worker_of[call.rank.value], [this, call] { Announce(call); });
}

void DataPlane::Announce(const RankCall& said) {
  world::Group& group = *w_.FindGroup(said.group, said.formation);
  if (!w_.alive.contains(said.session)) return;
  const int64_t number =
      said.execution < said.base ? -1 : static_cast<int64_t>(said.execution - said.base);
  world::Call call{.group = &group,
                   .formation = said.formation.value,
                   .rank = said.rank.value,
                   .session = said.session,
                   .program = said.program,
                   .identity = {said.group, said.formation.value, said.program, number, 0},
                   .num_cut = said.num_cut};
  const int worker = call.worker();
  if (!process(worker).up) {  // epd's sweep ends it.
    call.since = w_.now;
    w_.running.insert(w_.calls.size());
    w_.calls.push_back(call);
    return EndsByRecord(w_.calls.size() - 1, absl::UnavailableError("the worker is down"));
  }
  shm::SlotRequest request = MakePrepare({.group = said.group,
                                          .epoch = Epoch(group.epoch),
                                          .formation = said.formation,
                                          .rank = said.rank.value,
                                          .program = said.program,
                                          .execution = said.execution,
                                          .ordinal = 0});
  request.stage_bytes = 16 + kPage * (1 + w_.Roll(8));
  if (group.spec.executor == Executor::kWorker) request.plan_bytes = 16;
  if (!w_.quiet && w_.Chance(1)) {
    call.wrong = true;
    if (w_.OneIn(2)) {
      request.alignment = 8;  // The rank disagrees,
    } else if (w_.OneIn(2)) {
      request.error_code = 3;  // has bad input,
    } else {
      request.stage_bytes = 1 << 30;  // or wants more than there is.
    }
  }
  calls_.Announce(std::move(call), request);
}

// A client stages or reads on; it is alone with its mapping when its worker has gone.
void DataPlane::Step(size_t index) {
  const world::Call& call = w_.calls[index];
  if (call.dead || !call.holds()) return;
  WhenRunning(call.worker(), [this, index] {
    const world::Call& now = w_.calls[index];
    if (now.dead || !now.holds()) return;
    const int worker = now.worker();
    if (process(worker).up && w_.worker(worker).run == now.run) return calls_.NextStep(index);
    if (now.state == State::kReading) return calls_.End(index, absl::OkStatus());
    calls_.End(index, absl::UnavailableError("the worker is gone"));
  });
}

// Also where a worker or a stream was lost: ranks of one worker hear one outcome.
void DataPlane::CheckOutcome(const world::Call& call, const absl::Status& status) {
  if (std::get<3>(call.identity) < 0) return;
  const auto [other, first] = outcome_of_.try_emplace({call.identity, call.worker()}, status.ok());
  if (!first && other->second != status.ok()) {
    Fail("one_outcome", absl::StrCat("rank ", call.rank, " of ", Title(call.group->spec), " heard ",
                                     status.ToString(), ", and another rank ",
                                     other->second ? "that it was good" : "that it failed"));
  }
}

void DataPlane::Rest() {
  std::string waiting;
  for (const size_t running : w_.running) {
    const world::Call& call = w_.calls[running];
    absl::StrAppend(&waiting, waiting.empty() ? "" : ", ", "rank ", call.rank, " of ",
                    Title(call.group->spec), " waits in state ", static_cast<int>(call.state));
  }
  w_.Happens(nullptr, world::Rests{waiting});
}

absl::Time DataPlane::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (int i = 0; i < w_.num_workers(); ++i) {
    const Process& one = processes_[static_cast<size_t>(i)];
    if (!one.up) continue;
    next = std::min(next, std::max(w_.worker(i).exchange.next_deadline(), one.stopped_until));
  }
  return next;
}

void DataPlane::Tick() {
  for (int i = 0; i < w_.num_workers(); ++i) {
    if (!process(i).up || w_.now < process(i).stopped_until) continue;
    if (w_.now < w_.worker(i).exchange.next_deadline()) continue;
    w_.worker(i).exchange.Tick(w_.now);
    w_.Perform(w_.worker(i));
    w_.StepEnds(&w_.worker(i));
  }
}

}  // namespace epd::sim
