// The world round the engine: workers with an engine each, ordered streams between them, moves, time. One thing carries
// effects out, for directed tests (exchange_harness.h) and for simulations under seeds alike.
//
//   make_request.h   what clients say: requests, specs, tenants
//   world.h          what is there, what happens, and the one performer of effects
//   invariants.h     the list of what must hold, each a name and a function over the world, asked before every effect,
//                    at every action, after every step and at the end
//   sabotage.h       planted bugs: each breaks one promise, and names the invariant that must notice
//   calls.h          the steps of a CPU's call
//   callers.h        ranks whose CPUs call: programs, deaths, drains, hostile clients, formations
//   streams.h        ranks whose GPUs' streams call: sites that arm slots with constants, workers that are replaced
//   simulation.h     scenarios (options of all this) and their runs by seed
//
// With a control plane round it, and time that passes for both: tests/sim/data_plane.h.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "daemon/worker/engine/exchange.h"
#include "tests/unit/daemon/worker/world/sabotage.h"

namespace epd::world {

// A part of every arena of a set.
struct Area {
  ArenaSetId set;
  uint64_t offset = 0;
  uint64_t bytes = 0;

  bool Overlaps(const Area& other) const {
    return set == other.set && offset < other.offset + other.bytes && other.offset < offset + bytes;
  }
};

struct Move : MoveRows {
  std::optional<uint64_t> communicator = {};  // Its epoch, if the rows go by one.
  uint64_t number = 0;                        // Of the operation on all workers.
  bool prepared = false;
  std::optional<uint64_t> place = {};
  bool cancelled = false;
};

// One worker, and what it has asked for.
struct Worker {
  Worker(int i, const ExchangeOptions& options) : index(i), run(options.self), exchange(options) {}

  int index;
  Incarnation run;  // Zero: it has no peers.
  Exchange exchange;
  std::map<Submission, shm::Step> open;
  std::map<Submission, AnswerSubmission> answers;
  std::map<Submission, std::vector<uint8_t>> eager;
  std::map<Submission, OperationId> links;
  std::set<OperationId> records;
  std::map<OperationId, absl::Status> decided;
  std::map<OperationId, uint64_t> numbers;  // On all workers.
  std::map<OperationId, Area> regions;      // Of operations that are open.
  std::map<PeerOperation, Area> wires;      // Rows of other workers are taken there.
  std::set<RowsName> held;                  // Rows that have come with a message.
  // Whose rows stand in an arena of a rank of another worker, by set, arena and offset.
  std::map<std::tuple<ArenaSetId, int, uint64_t>, RowsName> standing;
  std::map<ArenaSetId, std::vector<SessionId>> sets;  // Whose they are.
  std::set<ArenaSetId> arenas;
  std::vector<Move> moves;
  std::vector<Region> commits;
  std::vector<CommitPages> making;  // Pages that are not all there yet.
  std::vector<Trim> trims;
  std::vector<Formation> ready;
  std::vector<Formation> drained;
  std::vector<EvictSession> evicted;
  std::vector<std::string> logs;
  std::vector<uint64_t> count_offsets;
  std::vector<std::vector<uint16_t>> told_counts;  // Of the last prepare.
  int num_count_routes = 0;
  // What ranks do without the worker: sets whose generations it has ended, in order with calls that it answered with a
  // failure (id 0); and whether some are still at it, so that nobody says DirectIdle.
  std::vector<ArenaSetId> direct_ends;
  std::vector<AwaitDirect> awaited;
  bool direct_busy = false;
  // Likewise of calls in GPUs' streams, and StreamsIdle.
  std::vector<AwaitStreams> awaited_streams;
  bool streams_busy = false;
};

struct Group {
  GroupId id;
  GroupSpec spec;
  std::vector<int> worker_of;  // [num_ranks]
  std::vector<SessionId> members;
  uint64_t epoch = 1;
  uint64_t formation = 0;
  std::vector<ExecutionBase> bases;
  std::map<int, ArenaSetId> sets;  // By worker.
  bool ended = false;              // It must be formed anew.
  bool leader_lost = false;
  bool streams = false;  // GPUs' streams call.

  std::set<int> workers() const { return {worker_of.begin(), worker_of.end()}; }
  bool by_communicator() const { return spec.on_device() && workers().size() > 1; }
  // A number of its own for each pair of ranks with the source, or the destination, on that worker: what workers say to each
  // other of tokens. The engine knows no more of them.
  std::vector<uint32_t> TokensTo(int source_worker) const;
  std::vector<uint32_t> TokensFrom(int destination_worker) const;
  uint64_t BaseOf(uint32_t rank, uint8_t program) const;
};

// Group, formation, program, number since the base, ordinal: calls of all ranks with the same one end alike.
using Identity = std::tuple<GroupId, uint64_t, uint8_t, int64_t, uint32_t>;

// One call of a CPU.
struct Call {
  enum class State { kAnnounced, kCopying, kPublished, kReading, kPulled, kEnded };
  Group* group = nullptr;
  uint64_t formation = 0;
  uint32_t rank = 0;
  SessionId session;
  uint8_t program = 0;
  Identity identity;
  State state = State::kAnnounced;
  Incarnation run = {};  // Of the worker that took it.
  Submission submission = {};
  OperationId operation = {};
  std::optional<uint8_t> eager_buffer = {};  // The first of those where its rows stand,
  uint32_t num_buffers = 0;                  // so many.
  std::vector<uint8_t> told = {};            // Where its peers' do.
  absl::Time since = {};
  bool dead = false;  // Its session is.
  bool failed = false;
  bool wrong = false;  // Its own rank has said so.
  // Executions that the formation has cut off on its rank, with the failure that the rank knew of.
  int num_cut = 0;

  bool open() const {
    return state == State::kAnnounced || state == State::kPublished || state == State::kPulled;
  }
  bool holds() const { return state == State::kCopying || state == State::kReading; }
  int worker() const { return group->worker_of[rank]; }
  PeerOperation Named(uint64_t number) const {
    return {group->id, epd::Formation(formation), number};
  }
};

// Some clients are of an earlier release.
inline bool ReadsManyEagerBuffers(SessionId session) { return session.value % 11 != 5; }

enum class UnderWay { kMessage, kRows, kMove, kPages };

// ---- what happens beside effects ----

// Somebody writes or reads the rows of an operation, from now on until it says otherwise.
struct Touches {
  int worker = 0;
  uint64_t run = 0;  // Of the worker whose arena is mapped.
  Area area;
  OperationId operation;
  SessionId session;
};
// All rows of a rank of another worker are written.
struct Lands {
  PeerOperation operation;
};
// A call was told how it ends; before it is over.
struct Ends {
  const Call* call = nullptr;
  absl::Status status;
};
// A session has died, of which these calls know nothing.
struct Dies {
  std::vector<size_t> others;
};
// A call of a site goes on: `over`, `planless`: what is true of this rank's call.
struct StreamTold {
  Submission submission;
  OperationId operation;
  absl::StatusCode code;
  bool drops = false;
  bool over = false;
  bool planless = false;
  bool pulled_open = false;  // That of the site's last call.
};
// A stream reads rows that were put there for `found`.
struct StreamReads {
  OperationId operation;
  std::vector<OperationId> found;
};
// A stream touches what an earlier worker gave it, for an operation of this one.
struct StreamIsStale {};
struct StreamArms {
  bool open = false;
};
struct StepIsOver {};
// There are no faults any more, and nobody has anything left to do; `waiting`: who waits all the same.
struct Rests {
  std::string waiting;
};
using Action = std::variant<std::monostate, Touches, Lands, Ends, Dies, StreamTold, StreamReads,
                            StreamIsStale, StreamArms, StepIsOver, Rests>;

// An effect that is about to be carried out, or an action.
struct Happening {
  const Worker* worker = nullptr;
  const Effect* effect = nullptr;
  Action action = {};

  template <typename Kind>
  const Kind* As() const {
    if constexpr (std::is_constructible_v<Action, Kind>) {
      return std::get_if<Kind>(&action);
    } else {
      return effect == nullptr ? nullptr : std::get_if<Kind>(effect);
    }
  }
};

// How a call of a site ended for a rank, and what was true of it.
struct SiteEnd {
  uint64_t cycle = 0;
  absl::StatusCode code = absl::StatusCode::kOk;
  bool over = false;
  bool planless = false;
};

struct Violation {
  std::string invariant;  // Empty: all hold.
  std::string what;
};

struct WorldOptions {
  ExchangeOptions engine = {};  // Of each worker.
  int num_workers = 1;
  bool two_on_one_node = false;  // The first two.
  int per_mille_of_moves_fail = 0;
  int per_mille_of_commits_fail = 0;
  bool pages_take_time = false;  // Until MakePages.
  absl::Duration late_by = {};   // Who hears of a deadline from another worker hears so much later.
};

class World {
 public:
  explicit World(const WorldOptions& options, uint64_t seed = 0,
                 Sabotage sabotage = Sabotage::kNone);

  // ---- chance ----
  uint64_t Roll(uint64_t sides) { return random_() % sides; }
  bool OneIn(uint64_t n) { return Roll(n) == 0; }
  bool Chance(int percent) { return Roll(100) < static_cast<uint64_t>(percent); }
  std::mt19937_64& random() { return random_; }
  bool Fails(int per_mille) { return !quiet && Roll(1000) < static_cast<uint64_t>(per_mille); }
  bool Is(Sabotage sabotage) const { return sabotage_ == sabotage; }

  // ---- what clients, epd and the network do; effects are carried out at once ----
  Worker& worker(int index) { return *workers_[static_cast<size_t>(index)]; }
  const Worker& worker(int index) const { return *workers_[static_cast<size_t>(index)]; }
  int num_workers() const { return options_.num_workers; }
  const WorldOptions& options() const { return options_; }
  WorkerId MemberOf(int worker) const;
  Group& AddGroup(Group group);  // Formed by Form.
  // One formation of a group that somebody else forms, under its own id.
  Group& AddFormation(Group group);
  // That formation; else the group that Form forms again and again. Null: there is none.
  Group* FindGroup(GroupId id, epd::Formation formation);
  const Group* FindGroup(GroupId id, epd::Formation formation) const;
  // The next formation, on all its workers.
  void Form(Group& group);
  void End(const Group& group, int worker, const absl::Status& cause);
  void Take(Worker& worker, const Submission& submission, const shm::SlotRequest& request);
  // The effects stay where they are until Perform.
  void TakeOnly(Worker& worker, const Submission& submission, const shm::SlotRequest& request);
  void Tick();
  bool DeliverMessage();
  bool DeliverMessage(int from, int to);  // The next one of these two.
  bool DeliverRows();
  bool DeliverRows(int from, int to);  // Any of these two.
  bool AdvanceMove();
  bool AdvanceMove(int worker);
  bool MakePages();
  bool MakePages(int worker);  // Any of its operations'.
  // All that is under way, and what follows from it; whether there was anything.
  bool DeliverEverything();
  void LosePeerStream();
  void LosePeerStream(int a, int b);
  // A worker hears that its stream to a run of another one is lost.
  void LosePeer(int at, Incarnation peer, const absl::Status& cause);
  // A new one in its place, which has no tenants, no sessions and no memory.
  Worker& NewRun(int index, const ExchangeOptions& options);
  // The same, and it is told the sessions.
  void Replace(Worker& worker, const ExchangeOptions& options);
  void Perform(Worker& worker);

  // ---- the invariants ----
  void Happens(const Worker* worker, Action action) { Check({worker, nullptr, std::move(action)}); }
  // Of one worker, or of all.
  void StepEnds(const Worker* worker = nullptr) { Happens(worker, StepIsOver()); }
  const Violation& violation() const { return violation_; }
  bool broken() const { return !violation_.invariant.empty(); }
  // Keeps what happens from now on in words.
  void Trace() { traces_ = true; }
  const std::deque<std::string>& last_steps() const { return last_steps_; }
  void Note(const std::string& what);

  // ---- what is known; for the invariants and for who acts ----
  absl::Time now = absl::UnixEpoch();
  absl::Status commit_status;
  bool quiet = false;  // No faults any more.
  std::deque<Group> groups;
  std::deque<Call> calls;
  std::set<size_t> running;  // Calls that have not ended and are not dead.
  std::map<Submission, size_t> call_of;
  std::map<uint64_t, Touches> touching;  // By who does.
  std::set<SessionId> lingering;         // Dead sessions whose process lives.
  std::set<SessionId> alive;             // Others are not known to be waited for.
  std::map<PeerOperation, std::set<Rank>> published;
  std::map<PeerOperation, std::set<std::pair<int, Rank>>> landed;
  std::map<PeerOperation, Identity> identities;
  std::map<Identity, absl::Status> endings;
  std::map<std::pair<uint64_t, uint64_t>, std::pair<PeerOperation, int>> places;  // Who takes part.
  std::map<std::pair<int, uint64_t>, uint64_t> next_place;       // By worker and communicator.
  std::map<std::pair<int, OperationId>, absl::StatusCode> told;  // Ends of calls of sites.
  std::map<std::pair<GroupId, uint32_t>, OperationId>
      staged;  // Whose rows stand in a rank's stream region.
  std::map<std::pair<int, OperationId>, PeerOperation> names;  // Of operations of streams.
  std::map<OperationId, bool>
      overflows;  // One worker: what failed for too many rows, and whether a rank had them.
  std::map<PeerOperation, std::map<uint32_t, uint64_t>> met;          // Cycles of the ranks in it.
  std::map<uint64_t, std::map<uint32_t, std::vector<SiteEnd>>> ends;  // By formation and rank.
  uint64_t communicator_epoch = 1;
  std::function<void(Worker&, const AnswerSubmission&)> on_answer = [](auto&, const auto&) {};
  std::function<void(Worker&, const Move&)> on_moved = [](auto&, const auto&) {};
  // What epd is told: Report... and EvictSession.
  std::function<void(Worker&, const Effect&)> on_report = [](auto&, const auto&) {};
  // Something is under way that DeliverMessage(from, to), DeliverRows, AdvanceMove or MakePages brings to its end.
  std::function<void(UnderWay, int from, int to)> on_under_way = [](auto, auto, auto) {};
  // While it is traced: what happens, in words.
  std::function<void(const std::string&)> on_note = [](const auto&) {};
  // A worker speaks to a run that is over.
  std::function<void(int from, Incarnation peer)> on_unreachable = [](auto, auto) {};
  uint64_t num_revoked = 0;
  uint64_t num_turns = 0;
  uint64_t num_cancelled = 0;        // Moves.
  uint64_t num_cancelled_pages = 0;  // Orders of pages.
  uint64_t num_in_several = 0;       // Calls whose rows stood in several eager buffers.
  uint64_t num_formations = 0;
  uint64_t num_landed_ahead = 0;
  uint64_t num_dropped_ahead = 0;

 private:
  struct Performer;  // Of effects.
  struct Rows {
    PeerOperation operation;
    int from = 0;
    int to = 0;
    Rank rank;
  };

  void Check(const Happening& happening);
  int IndexOf(Incarnation run) const;  // -1: of none.
  void Land(size_t index);
  TenantStart StartOf(const Group& group, int worker) const;
  bool CanEnd(const Worker& worker, const Move& move) const;
  void EndMove(Worker& worker, size_t index, const absl::Status& status);
  void EndPages(Worker& worker, const CommitPages& pages);
  // Sabotage.
  void Bend(Worker& worker, Effects& effects);
  bool Bend(PeerMessage& message);

  std::mt19937_64 random_;
  const WorldOptions options_;
  const Sabotage sabotage_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::map<Incarnation, int> runs_;
  std::map<std::pair<GroupId, epd::Formation>, size_t> formations_;  // Of AddFormation.
  std::map<std::pair<int, int>, std::deque<PeerMessage>> peer_streams_;
  std::vector<Rows> rows_;
  std::set<Submission> answered_early_;  // By a sabotage.
  Violation violation_;
  bool traces_ = false;
  std::deque<std::string> last_steps_;
};

// Of a worker's first run, where there are several workers.
inline Incarnation IncarnationOf(int worker) {
  return Incarnation(100 + static_cast<uint64_t>(worker));
}

}  // namespace epd::world
