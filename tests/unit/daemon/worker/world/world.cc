#include "tests/unit/daemon/worker/world/world.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/unit/daemon/worker/world/invariants.h"
#include "tests/unit/daemon/worker/world/make_request.h"

namespace epd::world {
namespace {

constexpr size_t kMaxSteps = 24;  // That a failure shows.
constexpr uint64_t kDigest = 7;   // Of prepared moves that agree.

}  // namespace

uint64_t Group::BaseOf(uint32_t rank, uint8_t program) const {
  for (const ExecutionBase& base : bases) {
    if (base.rank == Rank(rank) && base.program[0] == program) return base.base;
  }
  return 0;
}

std::vector<uint32_t> Group::TokensTo(int source_worker) const {
  std::vector<uint32_t> tokens;
  const auto ranks = static_cast<uint32_t>(worker_of.size());
  for (uint32_t pair = 0; pair < ranks * ranks; ++pair) {
    if (worker_of[pair / ranks] == source_worker) tokens.push_back(pair);
  }
  return tokens;
}

std::vector<uint32_t> Group::TokensFrom(int destination_worker) const {
  std::vector<uint32_t> tokens;
  const auto ranks = static_cast<uint32_t>(worker_of.size());
  for (uint32_t pair = 0; pair < ranks * ranks; ++pair) {
    if (worker_of[pair % ranks] == destination_worker) tokens.push_back(pair);
  }
  return tokens;
}

World::World(const WorldOptions& options, uint64_t seed, Sabotage sabotage)
    : random_(seed), options_(options), sabotage_(sabotage) {
  for (int w = 0; w < options.num_workers; ++w) {
    ExchangeOptions engine = options.engine;
    if (options.num_workers > 1) engine.self = IncarnationOf(w);
    workers_.push_back(std::make_unique<Worker>(w, engine));
    runs_[engine.self] = w;
  }
}

WorkerId World::MemberOf(int worker) const {
  if (!options_.two_on_one_node) return {NodeId{absl::StrCat("n", worker)}, {}};
  return {NodeId{worker < 2 ? "n0" : "n1"}, WorkerName{worker % 2}};
}

// ---- formations ----

Group& World::AddGroup(Group group) {
  group.id = GroupId(1 + groups.size());
  for (uint32_t r = 0; r < group.spec.num_ranks; ++r) {
    if (alive.insert(group.members[r]).second)
      worker(group.worker_of[r]).exchange.AddSession(group.members[r]);
  }
  groups.push_back(std::move(group));
  return groups.back();
}

Group& World::AddFormation(Group group) {
  formations_[{group.id, epd::Formation(group.formation)}] = groups.size();
  groups.push_back(std::move(group));
  return groups.back();
}

const Group* World::FindGroup(GroupId id, epd::Formation formation) const {
  if (!formations_.empty()) {
    const auto found = formations_.find({id, formation});
    return found == formations_.end() ? nullptr : &groups[found->second];
  }
  return id.value >= 1 && id.value <= groups.size() ? &groups[id.value - 1] : nullptr;
}
Group* World::FindGroup(GroupId id, epd::Formation formation) {
  return const_cast<Group*>(std::as_const(*this).FindGroup(id, formation));
}

int World::IndexOf(Incarnation run) const {
  const auto found = runs_.find(run);
  return found == runs_.end() ? -1 : found->second;
}

TenantStart World::StartOf(const Group& group, int at) const {
  TenantStart start{.group = group.id,
                    .epoch = Epoch(group.epoch),
                    .formation = epd::Formation(group.formation),
                    .spec = group.spec,
                    .members = {},
                    .bases = group.bases,
                    .base_cause = absl::AbortedError("re-formed")};
  for (uint32_t r = 0; r < group.spec.num_ranks; ++r) {
    const int server = group.worker_of[r];
    RankHolder member = MakeMember(r, server == at ? group.members[r] : SessionId());
    if (num_workers() > 1) {
      member.node = MemberOf(server).node;
      member.worker = MemberOf(server).name;
    }
    start.members.push_back(std::move(member));
  }
  if (num_workers() == 1) return start;
  start.communicator = GroupId(1000);  // All groups on devices have one.
  for (const int w : group.workers()) {
    start.nodes.push_back({MemberOf(w).node, IncarnationOf(w), "somewhere", MemberOf(w).name});
  }
  return start;
}

void World::Form(Group& group) {
  ++group.formation;
  ++num_formations;
  Note(absl::StrCat("group ", group.id.value, " forms for the ", group.formation, ". time"));
  group.ended = group.leader_lost = false;
  if (group.by_communicator()) group.epoch = communicator_epoch;
  for (const int w : group.workers()) {
    const absl::Status started = worker(w).exchange.StartTenant(StartOf(group, w), now);
    if (!started.ok()) violation_ = {"forming", std::string(started.message())};
    Perform(worker(w));
  }
}

void World::End(const Group& group, int at, const absl::Status& cause) {
  worker(at).exchange.EndTenant(group.id, epd::Formation(group.formation), cause, now);
  Perform(worker(at));
}

// What was under way from it and to it is lost.
Worker& World::NewRun(int index, const ExchangeOptions& options) {
  runs_.erase(worker(index).run);
  runs_[options.self] = index;
  std::erase_if(peer_streams_, [index](const auto& stream) {
    return stream.first.first == index || stream.first.second == index;
  });
  std::erase_if(rows_,
                [index](const Rows& rows) { return rows.from == index || rows.to == index; });
  workers_[static_cast<size_t>(index)] = std::make_unique<Worker>(index, options);
  return worker(index);
}

void World::Replace(Worker& old, const ExchangeOptions& options) {
  const int index = old.index;
  NewRun(index, options);
  for (const Group& group : groups) {
    for (uint32_t r = 0; r < group.spec.num_ranks; ++r) {
      if (group.worker_of[r] == index) worker(index).exchange.AddSession(group.members[r]);
    }
  }
}

// ---- effects ----

struct World::Performer {
  World& world;
  Worker& w;

  void operator()(const LinkSubmission& e) { w.links[e.submission] = e.operation; }
  void operator()(const OpenRecord& e) { w.records.insert(e.operation); }
  void operator()(const DecideRecord& e) { w.decided.emplace(e.operation, e.status); }
  void operator()(const CloseRecord& e) {
    w.regions.erase(e.operation);
    if (!world.Is(Sabotage::kLoseRecord) || !world.OneIn(5)) w.records.erase(e.operation);
  }
  void operator()(const EndDirect& e) { w.direct_ends.push_back(e.set); }
  void operator()(const AwaitDirect& e) {
    w.awaited.push_back(e);
    world.on_report(w, e);
    if (!w.direct_busy) w.exchange.DirectIdle(e.group, e.formation, world.now);
  }
  void operator()(const AwaitStreams& e) {
    w.awaited_streams.push_back(e);
    if (!w.streams_busy) w.exchange.StreamsIdle(e.group, e.formation, world.now);
  }
  void operator()(const NameEagerBuffers& e) { w.eager[e.submission] = e.eager_buffer_of_rank; }
  void operator()(const AnswerSubmission& e) {
    w.open.erase(e.submission);
    w.answers.emplace(e.submission, e);
    if (!e.status.ok()) w.direct_ends.push_back(ArenaSetId());
    if (e.status.ok() && e.plan_id != 0) w.numbers[e.operation] = e.plan_id;
    world.on_answer(w, e);
  }
  void operator()(const CommitPages& e) {
    w.commits.push_back(e.range);
    w.trims.insert(w.trims.end(), e.trims.begin(), e.trims.end());
    if (!world.options_.pages_take_time) return world.EndPages(w, e);
    w.making.push_back(e);
    world.on_under_way(UnderWay::kPages, w.index, w.index);
  }
  void operator()(const CancelPages& e) {
    const auto making = std::find_if(w.making.begin(), w.making.end(), [&](const CommitPages& one) {
      return one.operation == e.operation;
    });
    if (making == w.making.end() || world.Roll(2) == 0) return;  // Something of it is under way.
    w.making.erase(making);
    ++world.num_cancelled_pages;
    w.exchange.PagesCommitted(e.operation, absl::CancelledError("cancelled"), world.now);
  }
  void operator()(const CreateArenas& e) { w.arenas.insert(e.set); }
  void operator()(const DropArenas& e) { w.arenas.erase(e.set); }
  void operator()(const ReportTenantReady& e) {
    w.ready.push_back(e.formation);
    world.on_report(w, e);
    Group* const group = world.FindGroup(e.group, e.formation);
    if (group == nullptr) return;
    group->sets[w.index] = e.set;
    w.sets[e.set].clear();
    for (size_t r = 0; r < group->members.size(); ++r) {
      if (group->worker_of[r] == w.index) w.sets[e.set].push_back(group->members[r]);
    }
  }
  void operator()(const ReportTenantDrained& e) {
    w.drained.push_back(e.formation);
    world.on_report(w, e);
  }
  void operator()(const ReportTenantBroken& e) {
    world.on_report(w, e);
    Group* const group = world.FindGroup(e.group, e.formation);
    if (group != nullptr && group->formation == e.formation.value) group->ended = true;
  }
  void operator()(const MoveRows& e) {
    Move move{e};
    const Group* const group = world.FindGroup(e.group, e.formation);
    if (group != nullptr && group->by_communicator()) move.communicator = group->epoch;
    if (const auto number = w.numbers.find(e.operation); number != w.numbers.end())
      move.number = number->second;
    w.moves.push_back(std::move(move));
    world.on_under_way(UnderWay::kMove, w.index, w.index);
  }
  void operator()(const TakeTurn& e) {
    ++world.num_turns;
    for (Move& move : w.moves) {
      if (move.operation != e.operation) continue;
      move.place = e.place;
      if (move.communicator != world.communicator_epoch) return;  // Aborted.
      ++world.next_place[{w.index, *move.communicator}];
      auto& [name, taken] = world.places[{*move.communicator, e.place}];
      if (taken++ == 0) name = {move.group, move.formation, move.number};
    }
  }
  void operator()(const CancelMove& e) {
    for (size_t i = 0; i < w.moves.size(); ++i) {
      if (w.moves[i].operation != e.operation) continue;
      w.moves[i].cancelled = true;
      if (!w.moves[i].communicator.has_value()) return;  // It may be at it.
      ++world.num_cancelled;
      return world.EndMove(w, i, absl::AbortedError("cancelled"));
    }
  }
  void operator()(const CountRoutes& e) {
    ++w.num_count_routes;
    w.count_offsets = e.offsets;
    w.told_counts = e.told;
  }
  void operator()(const SendToPeer& e) {
    if (e.message.step == LeaderStep::kRevoked) ++world.num_revoked;
    PeerMessage message = e.message;
    const int to = world.IndexOf(e.peer);
    if (to < 0) return world.on_unreachable(w.index, e.peer);
    if (!world.Bend(message)) return;
    world.peer_streams_[{w.index, to}].push_back(std::move(message));
    world.on_under_way(UnderWay::kMessage, w.index, to);
  }
  void operator()(const OpenWire& e) { w.wires[e.operation] = {e.set, e.offset, e.bytes}; }
  void operator()(const SendRows& e) {
    for (const auto& [peer, unused] : e.destinations) {
      const int to = world.IndexOf(peer);
      if (to < 0) continue;
      world.rows_.push_back({e.operation, w.index, to, e.rank});
      world.on_under_way(UnderWay::kRows, w.index, to);
    }
  }
  void operator()(const SendRowsAhead& e) {
    for (const auto& [peer, unused] : e.destinations) {
      if (world.IndexOf(peer) < 0) world.on_unreachable(w.index, peer);
    }
    for (const SendRowsAhead::Stage& stage : e.stages) {
      if (world.Fails(world.options_.per_mille_of_moves_fail)) {
        return w.exchange.RowsAheadRefused(e.operation, stage.rank, absl::DataLossError("damaged"),
                                           world.now);
      }
      for (const auto& [peer, unused] : e.destinations) {
        const int to = world.IndexOf(peer);
        PeerMessage message = stage.message;
        if (to < 0 || !world.Bend(message)) continue;
        world.peer_streams_[{w.index, to}].push_back(std::move(message));
        world.on_under_way(UnderWay::kMessage, w.index, to);
      }
    }
    w.exchange.RowsAheadSent(e.operation, world.now);
  }
  void operator()(const LandRows& e) {
    ++world.num_landed_ahead;
    w.held.erase(e.name);
    w.standing[{e.set, e.arena, e.offset}] = e.name;
  }
  void operator()(const DropRows& e) { world.num_dropped_ahead += w.held.erase(e.name); }
  void operator()(const CloseWire& e) {
    w.wires.erase(e.operation);
    std::erase_if(world.rows_, [&](const Rows& rows) {
      return rows.operation == e.operation && rows.to == w.index;
    });
  }
  void operator()(const EvictSession& e) {
    w.evicted.push_back(e);
    world.on_report(w, e);
  }
  void operator()(const LogLine& e) { w.logs.push_back(e.text); }
};

void World::Perform(Worker& worker) {
  for (Effects effects = worker.exchange.TakeEffects(); !effects.empty();
       effects = worker.exchange.TakeEffects()) {
    Bend(worker, effects);
    for (const Effect& effect : effects) {
      Check({&worker, &effect});
      std::visit(Performer{*this, worker}, effect);
    }
  }
}

// ---- what clients do, and time ----

void World::TakeOnly(Worker& worker, const Submission& submission,
                     const shm::SlotRequest& request) {
  worker.open[submission] = request.step;
  if (traces_)
    Note(absl::StrCat("take step ", static_cast<int>(request.step), " of rank ", request.rank,
                      ", session ", submission.session.value));
  worker.exchange.Take(submission, request, now);
}

void World::Take(Worker& worker, const Submission& submission, const shm::SlotRequest& request) {
  TakeOnly(worker, submission, request);
  if (Is(Sabotage::kEarlyPulled) && request.step == shm::Step::kPulled && Chance(20)) {
    const Effect early = AnswerSubmission{.submission = submission,
                                          .status = {},
                                          .operation = OperationId(request.operation.op_id),
                                          .region = {}};
    Check({&worker, &early});
    Performer{*this, worker}(std::get<AnswerSubmission>(early));
    answered_early_.insert(submission);
  }
  Perform(worker);
}

void World::Tick() {
  for (const auto& worker : workers_) {
    if (!Is(Sabotage::kForgetDeadlines)) worker->exchange.Tick(now);
    Perform(*worker);
  }
}

// ---- between workers ----

bool World::DeliverMessage() {
  std::vector<std::pair<int, int>> ready;
  for (const auto& [link, stream] : peer_streams_) {
    if (!stream.empty()) ready.push_back(link);
  }
  if (ready.empty()) return false;
  const auto [from, to] = ready[Roll(ready.size())];
  return DeliverMessage(from, to);
}

bool World::DeliverMessage(int from, int to) {
  const auto found = peer_streams_.find({from, to});
  if (found == peer_streams_.end() || found->second.empty()) return false;
  std::deque<PeerMessage>& stream = found->second;
  const bool swap = Is(Sabotage::kSwapMessages) && OneIn(2);
  const auto next = stream.begin() + static_cast<ptrdiff_t>(swap ? Roll(stream.size()) : 0);
  const PeerMessage message = std::move(*next);
  stream.erase(next);
  if (traces_)
    Note(absl::StrCat("worker ", to, " hears step ", static_cast<int>(message.step), " of worker ",
                      from));
  if (message.step == LeaderStep::kRows) {
    worker(to).held.insert(NameRows(worker(from).run, message));
  }
  worker(to).exchange.Receive(worker(from).run, message, now);
  Perform(worker(to));
  return true;
}

bool World::DeliverRows() {
  if (rows_.empty()) return false;
  Land(Roll(rows_.size()));
  return true;
}

bool World::DeliverRows(int from, int to) {
  std::vector<size_t> ready;
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i].from == from && rows_[i].to == to) ready.push_back(i);
  }
  if (ready.empty()) return false;
  Land(ready[Roll(ready.size())]);
  return true;
}

void World::Land(size_t index) {
  const Rows rows = rows_[index];
  rows_.erase(rows_.begin() + static_cast<ptrdiff_t>(index));
  Worker& to = worker(rows.to);
  if (!to.wires.contains(rows.operation)) return;  // Dropped.
  if (!Is(Sabotage::kPhantomRows) || !OneIn(20)) {
    Happens(&to, Lands{rows.operation});
    landed[rows.operation].insert({rows.to, rows.rank});
  }
  to.exchange.RowsLanded(rows.operation, rows.rank, now);
  Perform(to);
}

// Streams of a device run in order, and an operation ends when all members take part.
bool World::CanEnd(const Worker& worker, const Move& move) const {
  if (!move.communicator.has_value() || move.communicator != communicator_epoch) return true;
  if (!move.place.has_value()) return false;
  for (const Move& other : worker.moves) {
    if (other.communicator == move.communicator && other.place < move.place &&
        other.place.has_value())
      return false;
  }
  return places.at({*move.communicator, *move.place}).second == num_workers();
}

void World::EndMove(Worker& worker, size_t index, const absl::Status& status) {
  const Move move = worker.moves[index];
  worker.moves.erase(worker.moves.begin() + static_cast<ptrdiff_t>(index));
  const PeerOperation name{move.group, move.formation, move.number};
  for (uint32_t r = 0; status.ok() && move.communicator && r < move.job.parts.size(); ++r) {
    if (!move.job.parts[r].local) landed[name].insert({worker.index, Rank(r)});
  }
  if (status.ok()) on_moved(worker, move);
  if (traces_) Note(absl::StrCat("move of ", move.operation.value, " ends: ", status.ToString()));
  worker.exchange.RowsMoved(move.operation, status, now);
}

bool World::AdvanceMove() {
  const size_t first = Roll(workers_.size());
  for (size_t w = 0; w < workers_.size(); ++w) {
    if (AdvanceMove(static_cast<int>((first + w) % workers_.size()))) return true;
  }
  return false;
}

bool World::AdvanceMove(int at) {
  const auto fails = [this] { return Fails(options_.per_mille_of_moves_fail); };
  Worker& one = worker(at);
  const size_t from = one.moves.empty() ? 0 : Roll(one.moves.size());
  for (size_t i = 0; i < one.moves.size(); ++i) {
    const size_t index = (from + i) % one.moves.size();
    Move& move = one.moves[index];
    if (CanEnd(one, move)) {
      absl::Status status = fails() ? absl::DataLossError("damaged") : absl::OkStatus();
      if (move.communicator.has_value() && move.communicator != communicator_epoch)
        status = absl::AbortedError("a member is lost");
      EndMove(one, index, status);
    } else if (move.prepared) {
      continue;
    } else if (fails()) {
      EndMove(one, index, absl::DataLossError("its plans differ"));
    } else {
      move.prepared = true;
      PreparedRows rows = {.digest = fails() ? kDigest + 1 : kDigest};
      const Group* const group = FindGroup(move.group, move.formation);
      if (group != nullptr) rows.tokens_to = group->TokensTo(one.index);
      one.exchange.RowsPrepared(move.operation, std::move(rows), now);
    }
    Perform(one);
    return true;
  }
  return false;
}

void World::EndPages(Worker& worker, const CommitPages& pages) {
  const bool fails = Fails(options_.per_mille_of_commits_fail);
  worker.exchange.PagesCommitted(
      pages.operation,
      fails ? absl::ResourceExhaustedError("the node has no memory") : commit_status, now);
}

bool World::MakePages() {
  const size_t first = Roll(workers_.size());
  for (size_t w = 0; w < workers_.size(); ++w) {
    if (MakePages(static_cast<int>((first + w) % workers_.size()))) return true;
  }
  return false;
}

bool World::MakePages(int at) {
  Worker& one = worker(at);
  if (one.making.empty()) return false;
  const auto made = one.making.begin() + static_cast<ptrdiff_t>(Roll(one.making.size()));
  const CommitPages pages = *made;
  one.making.erase(made);
  EndPages(one, pages);
  Perform(one);
  return true;
}

bool World::DeliverEverything() {
  constexpr int kForEver = 10'000;
  int num_steps = 0;
  while (num_steps < kForEver &&
         (DeliverMessage() || DeliverRows() || AdvanceMove() || MakePages()))
    ++num_steps;
  return num_steps > 0;
}

// Both directions between two workers: what is under way is lost, and both are told.
void World::LosePeerStream() {
  const int a = static_cast<int>(Roll(workers_.size()));
  const int b = static_cast<int>((a + 1 + Roll(workers_.size() - 1)) % workers_.size());
  LosePeerStream(a, b);
}

void World::LosePeerStream(int a, int b) {
  Note(absl::StrCat("workers ", a, " and ", b, " lose each other"));
  peer_streams_[{a, b}].clear();
  peer_streams_[{b, a}].clear();
  std::erase_if(rows_, [&](const Rows& rows) {
    return (rows.from == a && rows.to == b) || (rows.from == b && rows.to == a);
  });
  for (Group& group : groups) {
    if (group.worker_of[0] == a || group.worker_of[0] == b) group.leader_lost = true;
    // All members abort; the tenants form again in the next epoch.
    if (group.by_communicator()) group.ended = true;
  }
  ++communicator_epoch;
  LosePeer(a, worker(b).run, absl::UnavailableError("cable"));
  LosePeer(b, worker(a).run, absl::UnavailableError("cable"));
}

void World::LosePeer(int at, Incarnation peer, const absl::Status& cause) {
  worker(at).exchange.PeerLost(peer, cause, now);
  Perform(worker(at));
}

// ---- invariants ----

void World::Check(const Happening& happening) {
  if (traces_) Note(Describe(happening));
  for (const Invariant& invariant : Invariants()) {
    if (broken()) return;
    if (std::string what = invariant.broken(*this, happening); !what.empty())
      violation_ = {invariant.name, std::move(what)};
  }
}

void World::Note(const std::string& what) {
  const bool again = !last_steps_.empty() && last_steps_.back() == what;
  if (!traces_ || what.empty() || again || broken()) return;
  on_note(what);
  last_steps_.push_back(what);
  if (last_steps_.size() > kMaxSteps) last_steps_.pop_front();
}

}  // namespace epd::world
