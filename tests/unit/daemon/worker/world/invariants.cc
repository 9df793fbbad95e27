#include "tests/unit/daemon/worker/world/invariants.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace epd::world {
namespace {

constexpr absl::Duration kHold = absl::Seconds(30);
using State = Call::State;
using Code = absl::StatusCode;

const Call* FindCall(const World& world, const Submission& submission) {
  const auto found = world.call_of.find(submission);
  return found == world.call_of.end() ? nullptr : &world.calls[found->second];
}
shm::Step StepOf(const Worker& worker, const Submission& submission) {
  const auto found = worker.open.find(submission);
  return found == worker.open.end() ? shm::Step() : found->second;
}
bool IsPublish(shm::Step step) {
  return step == shm::Step::kPublish || step == shm::Step::kStreamPublish;
}
// Good or bad, and the cause without the rank that is told.
std::string WithoutPlace(const absl::Status& status) {
  const std::string text(status.message());
  const size_t colon = text.find(": ");
  return colon == std::string::npos ? text : text.substr(colon + 2);
}

std::string Answers(const World& world, const Happening& h) {
  const auto* e = h.As<AnswerSubmission>();
  if (e == nullptr) return "";
  if (!h.worker->open.contains(e->submission)) return "a submission was answered that is not open";
  const Call* const call = FindCall(world, e->submission);
  if (call != nullptr && !call->dead && call->state == State::kPulled && !e->status.ok())
    return "a pulled was answered with an error";
  return "";
}

std::string Reach(const World&, const Happening& h) {
  const auto* e = h.As<Ends>();
  return e != nullptr && e->call->num_cut > 1
             ? "a rank is more than one failed call away from its peers"
             : "";
}

std::string Records(const World&, const Happening& h) {
  if (h.worker == nullptr) return "";
  const Worker& w = *h.worker;
  if (const auto* e = h.As<OpenRecord>()) {
    if (w.records.contains(e->operation) || w.decided.contains(e->operation))
      return "an operation id was used twice";
  } else if (const auto* e = h.As<DecideRecord>()) {
    if (!w.records.contains(e->operation)) return "an outcome without a record";
    if (w.decided.contains(e->operation)) return "an outcome was decided twice";
  } else if (const auto* e = h.As<CloseRecord>()) {
    if (!w.records.contains(e->operation)) return "a record was given back twice";
  } else if (const auto* e = h.As<AnswerSubmission>()) {
    const auto decided = w.decided.find(e->operation);
    const bool known = decided != w.decided.end();
    if (!e->status.ok() && e->operation) {
      if (!known) return "an error before the record of the outcome";
      if (decided->second.ok()) return "an error although the outcome is good";
    }
    const bool eager = w.eager.contains(e->submission);
    if (e->status.ok() && (eager || IsPublish(StepOf(w, e->submission))) &&
        !(known && decided->second.ok()))
      return "a good answer without a good outcome on record";
  }
  return "";
}

std::string Agreement(const World& world, const Happening& h) {
  if (const auto* e = h.As<Ends>()) {
    const Call& call = *e->call;
    const auto other = world.endings.find(call.identity);
    if (other == world.endings.end() || std::get<3>(call.identity) < 0) return "";
    if (call.group->leader_lost && call.group->formation == call.formation) return "";
    if (other->second.ok() != e->status.ok()) return "good on one rank and failed on another";
    const std::string one = WithoutPlace(other->second);
    const std::string two = WithoutPlace(e->status);
    if (call.group->workers().size() == 1 && one != two)
      return absl::StrCat("two causes: '", one, "' and '", two, "'");
  } else if (const auto* e = h.As<AnswerSubmission>(); e != nullptr && e->operation) {
    const auto told = world.told.find({h.worker->index, e->operation});
    if (StepOf(*h.worker, e->submission) == shm::Step::kStreamPublish && told != world.told.end() &&
        told->second != e->status.code())
      return "the ranks of a call were told different things";
  }
  return "";
}

// Of another worker's rank, whose rows have gone ahead, where the call reads them.
bool StandsThere(const World& world, const Call& call, uint32_t rank) {
  const Worker& w = world.worker(call.worker());
  const uint64_t offset = call.told[rank] * world.options().engine.eager.buffer_bytes;
  const auto found =
      w.standing.find({call.group->sets.at(w.index), static_cast<int>(rank), offset});
  if (found == w.standing.end()) return false;
  const RowsName& name = found->second;
  const Execution& execution = name.key.execution;
  const bool same_execution =
      execution.program[0] == call.program &&
      (name.key.named || static_cast<int64_t>(execution.number) == std::get<3>(call.identity));
  return name.group == call.group->id && name.formation.value == call.formation &&
         name.rank == Rank(rank) && same_execution &&
         name.key.ordinal == std::get<4>(call.identity);
}

std::string RowsAheadAreTrue(const World& world, const Happening& h) {
  if (const auto* e = h.As<LandRows>()) {
    if (!h.worker->held.contains(e->name)) return "rows land that have not come";
  } else if (const auto* e = h.As<Ends>(); e != nullptr && e->status.ok()) {
    const Call& call = *e->call;
    for (uint32_t r = 0; r < call.told.size(); ++r) {
      if (call.group->worker_of[r] != call.worker() && !StandsThere(world, call, r))
        return "good, and a rank of another worker has no rows there";
    }
  }
  return "";
}

std::string Truth(const World& world, const Happening& h) {
  if (const auto* e = h.As<MoveRows>()) {
    const Group* const found = world.FindGroup(e->group, e->formation);
    if (found == nullptr) return "";
    const Group& group = *found;
    for (uint32_t r = 0; r < e->job.parts.size(); ++r) {
      const MovePart& part = e->job.parts[r];
      if (part.local != (group.worker_of[r] == h.worker->index))
        return "rows of another worker's rank are moved";
      if (group.streams && part.stage_offset != 0)
        return "rows are moved that are in no stream region";
      const auto staged = world.staged.find({e->group, r});
      if (group.streams && part.local &&
          (staged == world.staged.end() || staged->second != e->operation))
        return "rows are moved that are not staged";
    }
  } else if (const auto* e = h.As<Ends>(); e != nullptr && e->status.ok()) {
    const Call& call = *e->call;
    const Worker& w = world.worker(call.worker());
    const auto number = w.numbers.find(call.operation);
    if (!call.told.empty() || number == w.numbers.end()) return "";
    const PeerOperation name = call.Named(number->second);
    const size_t num_ranks = call.group->spec.num_ranks;
    const auto published = world.published.find(name);
    if (published == world.published.end() || published->second.size() < num_ranks)
      return "good before every rank had published";
    const auto landed = world.landed.find(name);
    const size_t num_landed = landed == world.landed.end() ? 0 : landed->second.size();
    if (num_landed < num_ranks * (call.group->workers().size() - 1))
      return "good before all rows had landed";
  } else if (const auto* e = h.As<StreamTold>(); e != nullptr && e->code == Code::kOk) {
    if (e->planless) return "a call went on without a plan";
    if (e->over && !e->drops) return "rows were dropped in silence";
  } else if (const auto* e = h.As<AnswerSubmission>();
             e != nullptr && e->status.ok() &&
             StepOf(*h.worker, e->submission) == shm::Step::kStreamPublish) {
    if (world.groups.empty()) return "";
    const auto name = world.names.find({h.worker->index, e->operation});
    const auto published =
        name == world.names.end() ? world.published.end() : world.published.find(name->second);
    if (published == world.published.end() ||
        published->second.size() < world.groups[0].spec.num_ranks)
      return "good before every rank had published";
  }
  return "";
}

// Since the ranks of a formation met, the n-th call of one is the n-th call of every other: how they ended, and what was
// wrong with them.
struct SiteCall {
  size_t num_ranks = 0;
  bool over = false;
  bool planless = false;
  std::set<Code> codes;  // Those that say something of the call.
};

std::string SiteCallsAreTrue(const World& world, const Happening& h) {
  if (h.As<Rests>() == nullptr && h.As<StepIsOver>() == nullptr) return "";
  if (!world.quiet && h.As<Rests>() == nullptr) return "";
  if (world.groups.empty()) return "";
  for (const auto& [unused, over] : world.overflows) {
    if (!over || world.groups[0].spec.drop_on_overflow) return "an overflow of nobody's";
  }
  const Group& group = world.groups[0];
  std::map<uint64_t, const std::map<uint32_t, uint64_t>*> first;  // The first operation's cycles.
  for (const auto& [operation, cycles] : world.met) {
    if (cycles.size() == group.spec.num_ranks) first.emplace(operation.formation.value, &cycles);
  }
  for (const auto& [formation, cycles] : first) {
    std::map<uint64_t, SiteCall> calls;
    const auto ends = world.ends.find(formation);
    if (ends == world.ends.end()) continue;
    for (const auto& [rank, of_rank] : ends->second) {
      for (const SiteEnd& end : of_rank) {
        if (end.cycle < cycles->at(rank)) continue;
        SiteCall& call = calls[end.cycle - cycles->at(rank)];
        ++call.num_ranks;
        call.over |= end.over;
        call.planless |= end.planless;
        if (end.code == Code::kOk || end.code == Code::kInvalidArgument ||
            end.code == Code::kResourceExhausted || end.code == Code::kDataLoss)
          call.codes.insert(end.code);
      }
    }
    const bool drops = group.spec.drop_on_overflow;
    for (const auto& [unused, call] : calls) {
      if (call.codes.size() > 1) return "the ranks were told different things";
      if (call.codes.empty() || call.num_ranks < group.spec.num_ranks) continue;
      const Code code = *call.codes.begin();
      if (code == Code::kOk && ((call.over && !drops) || call.planless))
        return "a call was good that one rank had wrong";
      if (code == Code::kResourceExhausted && (!call.over || drops))
        return "an overflow of nobody's";
      if (code == Code::kInvalidArgument && !call.planless) return "an error of nobody's";
    }
  }
  return "";
}

std::string Pairing(const World& world, const Happening& h) {
  const auto* e = h.As<AnswerSubmission>();
  if (e != nullptr && e->status.ok() && e->plan_id != 0) {
    const Call* const call = FindCall(world, e->submission);
    if (call == nullptr || call->dead || call->state != State::kAnnounced) return "";
    const auto known = world.identities.find(call->Named(e->plan_id));
    if (known != world.identities.end() && known->second != call->identity)
      return "calls of different executions met";
  }
  if (h.As<StepIsOver>() == nullptr && h.As<Rests>() == nullptr) return "";
  if (world.met.empty() || (!world.quiet && h.As<Rests>() == nullptr)) return "";
  std::map<uint64_t, const std::map<uint32_t, uint64_t>*> first;
  for (const auto& [operation, cycles] : world.met) {
    if (cycles.size() < world.groups[0].spec.num_ranks) continue;
    const auto& base = *first.emplace(operation.formation.value, &cycles).first->second;
    for (const auto& [rank, cycle] : cycles) {
      if (cycle - base.at(rank) != cycles.at(0) - base.at(0)) return "calls of two steps met";
    }
  }
  return "";
}

std::string Exclusion(const World& world, const Happening& h) {
  if (const auto* e = h.As<AnswerSubmission>(); e != nullptr && e->status.ok() && e->operation &&
                                                shm::IsAnnounce(StepOf(*h.worker, e->submission))) {
    if (h.worker->eager.contains(e->submission)) return "";
    const Call* const call = FindCall(world, e->submission);
    if (call == nullptr || call->dead) return "";
    const Area area{call->group->sets.at(h.worker->index), e->region.offset, e->region.bytes};
    const uint64_t eager_bytes =
        e->region.eager.num_eager_buffers * world.options().engine.eager.buffer_bytes;
    if (area.offset < eager_bytes) return "a region overlaps the eager buffers";
    const Area eager{area.set, 0, eager_bytes};
    for (const auto& [operation, region] : h.worker->regions) {
      if (eager_bytes > 0 && operation != e->operation && region.Overlaps(eager))
        return "eager buffers are told where another operation has its region";
      if (operation != e->operation && region.Overlaps(area))
        return "two open operations share a region";
    }
    for (const auto& [unused, touch] : world.touching) {
      if (touch.worker == h.worker->index && touch.operation != e->operation &&
          touch.area.Overlaps(area))
        return "a region was given away while a client may touch it";
    }
  } else if (const auto* e = h.As<LandRows>()) {
    for (const size_t running : world.running) {
      const Call& call = world.calls[running];
      const bool reads = call.state == State::kReading && !call.told.empty() &&
                         call.worker() == h.worker->index &&
                         call.group->sets.at(h.worker->index) == e->set;
      if (reads &&
          call.told[e->name.rank.value] * world.options().engine.eager.buffer_bytes == e->offset)
        return "rows land where another operation's are read";
    }
  } else if (const auto* e = h.As<OpenWire>()) {
    for (const auto& [operation, wire] : h.worker->wires) {
      if (operation != e->operation && wire.Overlaps({e->set, e->offset, e->bytes}))
        return "two operations share a region";
    }
  } else if (const auto* e = h.As<Lands>()) {
    const Area& area = h.worker->wires.at(e->operation);
    for (const auto& [operation, wire] : h.worker->wires) {
      if (operation != e->operation && wire.Overlaps(area))
        return "rows are written where another operation's are";
    }
  } else if (const auto* e = h.As<Touches>()) {
    for (const auto& [unused, touch] : world.touching) {
      if (touch.worker == e->worker && touch.run == e->run && touch.operation != e->operation &&
          touch.area.Overlaps(e->area))
        return "two operations were in one region";
    }
  } else if (const auto* e = h.As<StreamReads>()) {
    for (const OperationId found : e->found) {
      if (found != e->operation) return "rows of another operation were read";
    }
  }
  return "";
}

// Whose arenas a group's ranks have at a worker; none where that is another worker's, whose rows this one alone writes.
std::vector<SessionId> SessionsAt(const Group& group, int worker) {
  std::vector<SessionId> sessions = group.members;
  for (size_t rank = 0; rank < sessions.size(); ++rank) {
    if (group.worker_of[rank] != worker) sessions[rank] = SessionId();
  }
  return sessions;
}

std::string Arenas(const World& world, const Happening& h) {
  const auto lingers = [&](const std::vector<SessionId>& sessions) {
    return std::any_of(sessions.begin(), sessions.end(),
                       [&](SessionId session) { return world.lingering.contains(session); });
  };
  if (const auto* e = h.As<DropArenas>()) {
    const auto sessions = h.worker->sets.find(e->set);
    if (sessions != h.worker->sets.end() && lingers(sessions->second))
      return "arenas were dropped that a process still writes";
    for (const auto& [unused, touch] : world.touching) {
      if (touch.worker == h.worker->index && touch.area.set == e->set)
        return "arenas were dropped that a client may touch";
    }
    for (const CommitPages& making : h.worker->making) {
      if (making.range.set == e->set) return "arenas were dropped whose pages are being made";
    }
  } else if (const auto* e = h.As<CommitPages>()) {
    for (const Trim& trim : e->trims) {
      for (const CommitPages& making : h.worker->making) {
        const Area area{making.range.set, making.range.offset, making.range.bytes};
        if (area.Overlaps({trim.set, trim.offset, trim.bytes}))
          return "pages were given back that are being made";
      }
    }
  } else if (const auto* e = h.As<ReportTenantReady>()) {
    if (!h.worker->arenas.contains(e->set)) return "a tenant is ready without arenas";
    const Group* const found = world.FindGroup(e->group, e->formation);
    if (found == nullptr) return "";
    const Group& group = *found;
    for (const Group& other : world.groups) {
      const auto set = other.sets.find(h.worker->index);
      if (&other != &group && !other.ended && set != other.sets.end() && set->second == e->set &&
          SessionsAt(other, h.worker->index) != SessionsAt(group, h.worker->index))
        return "tenants of different sessions were given the same arenas";
    }
  } else if (const auto* e = h.As<AnswerSubmission>();
             e != nullptr && e->status.ok() && e->region.bytes > 0) {
    const Call* const call = FindCall(world, e->submission);
    if (call == nullptr || call->dead || call->state != State::kAnnounced) return "";
    const ArenaSetId set = call->group->sets.at(h.worker->index);
    if (lingers(h.worker->exchange.staging().SessionsOf(set)))
      return "arenas of a process that still writes were given away";
  }
  return "";
}

std::string EagerBuffers(const World& world, const Happening& h) {
  if (const auto* e = h.As<AnswerSubmission>();
      e != nullptr &&
      e->region.eager.num_eager_buffers > world.options().engine.eager.few_buffers) {
    const Call* const call = FindCall(world, e->submission);
    if (call == nullptr || call->dead || call->formation != call->group->formation) return "";
    for (const SessionId session : call->group->members) {
      if (!ReadsManyEagerBuffers(session))
        return "ranks may put rows where a peer of an earlier release does not find them";
    }
  } else if (const auto* e = h.As<NameEagerBuffers>()) {
    if (h.worker->answers.contains(e->submission)) return "eager buffers are told after the answer";
    const auto link = h.worker->links.find(e->submission);
    if (link == h.worker->links.end() || link->second != e->operation)
      return "eager buffers of another operation are told";
    const Call* const call = FindCall(world, e->submission);
    if (call == nullptr) return "";
    if (e->eager_buffer_of_rank.size() != call->group->spec.num_ranks)
      return "eager buffers are missing";
    for (const size_t other : world.running) {
      const Call& peer = world.calls[other];
      if (peer.worker() == h.worker->index && peer.identity == call->identity &&
          peer.state == State::kAnnounced &&
          peer.eager_buffer != e->eager_buffer_of_rank[peer.rank])
        return "a rank is told an eager buffer that its peer did not say";
    }
  } else if (const auto* e = h.As<DecideRecord>(); e != nullptr && e->status.ok()) {
    for (const size_t running : world.running) {
      const Call& call = world.calls[running];
      const auto link = h.worker->links.find(call.submission);
      if (call.state == State::kAnnounced && link != h.worker->links.end() &&
          link->second == e->operation && !h.worker->eager.contains(call.submission))
        return "the outcome is good before every rank was told the eager buffers";
    }
  } else if (const auto* e = h.As<Ends>(); e != nullptr && !e->call->told.empty()) {
    for (const size_t other : world.running) {
      const Call& peer = world.calls[other];
      if (&peer != e->call && peer.state == State::kReading && peer.worker() == e->call->worker() &&
          peer.operation == e->call->operation)
        return "an eager buffer came back while a peer may read it";
    }
  }
  return "";
}

std::string Isolation(const World& world, const Happening& h) {
  const auto* e = h.As<Dies>();
  if (e == nullptr) return "";
  for (const size_t other : e->others) {
    // A holder that the engine evicted in the meantime breaks its own group.
    const Call& call = world.calls[other];
    if (call.failed && !call.group->ended) return "a death ended a call of another tenant";
  }
  return "";
}

std::string DeadlinesHold(const World& world, const Happening& h) {
  if (h.As<StepIsOver>() == nullptr) return "";
  for (const size_t running : world.running) {
    const Call& call = world.calls[running];
    const Deadlines& deadlines = call.group->spec.deadlines;
    absl::Duration limit = deadlines.undecided + world.options().late_by;
    if (call.state == State::kAnnounced) limit += deadlines.absent;
    if (call.state == State::kPulled) limit += kHold;
    if (!call.open() || world.now - call.since <= limit) continue;
    return absl::StrCat("a call waits beyond its deadlines: rank ", call.rank, " of group ",
                        call.group->id.value, " in state ", static_cast<int>(call.state), " for ",
                        absl::FormatDuration(world.now - call.since));
  }
  return "";
}

std::string Order(const World& world, const Happening& h) {
  if (const auto* e = h.As<TakeTurn>()) {
    const auto& moves = h.worker->moves;
    const auto move = std::find_if(moves.begin(), moves.end(),
                                   [&](const Move& one) { return one.operation == e->operation; });
    if (move == moves.end()) return "a turn of no move";
    if (!move->prepared || move->place.has_value()) return "a turn at the wrong time";
    if (move->communicator != world.communicator_epoch) return "";  // Aborted.
    const auto next = world.next_place.find({h.worker->index, *move->communicator});
    if (e->place != (next == world.next_place.end() ? 0 : next->second))
      return "a place is left out";
    const auto taken = world.places.find({*move->communicator, e->place});
    const PeerOperation name{move->group, move->formation, move->number};
    if (taken != world.places.end() && taken->second.first != name)
      return "two operations have one place";
    const Group* const group = world.FindGroup(move->group, move->formation);
    if (group != nullptr && e->tokens_from != group->TokensFrom(h.worker->index))
      return "a worker was told other tokens than the others have for it";
  } else if (const auto* e = h.As<CancelMove>()) {
    for (const Move& move : h.worker->moves) {
      if (move.operation == e->operation && move.place.has_value())
        return "cancelled after its turn";
    }
  } else if (const auto* e = h.As<StreamTold>(); e != nullptr && e->code == Code::kOk) {
    if (e->pulled_open) return "an announce was answered before its site's last pulled";
  }
  return "";
}

std::string Mapping(const World&, const Happening& h) {
  if (h.As<StreamIsStale>() == nullptr) return "";
  return "a stream touched staging of an earlier worker for an operation of this one";
}

std::string Arming(const World&, const Happening& h) {
  const auto* e = h.As<StreamArms>();
  return e != nullptr && e->open ? "a stream armed what is open: two became one" : "";
}

std::string Pool(const World& world, const Happening& h) {
  if (h.As<StepIsOver>() == nullptr) return "";
  for (int w = 0; w < world.num_workers(); ++w) {
    if (h.worker != nullptr && h.worker->index != w) continue;
    const absl::Status pool = world.worker(w).exchange.staging().pool().CheckConsistent();
    if (!pool.ok()) return std::string(pool.message());
  }
  return "";
}

std::string Progress(const World& world, const Happening& h) {
  const auto* e = h.As<Rests>();
  if (e == nullptr) return "";
  if (!e->waiting.empty()) return e->waiting;
  for (int w = 0; w < world.num_workers(); ++w) {
    for (const auto& [submission, step] : world.worker(w).open) {
      if (world.alive.contains(submission.session) && !IsStreamStep(step))
        return "a submission was never answered";
    }
  }
  return "";
}

std::string Return(const World& world, const Happening& h) {
  if (h.As<Rests>() == nullptr || world.groups.empty() || world.groups[0].streams) return "";
  for (int w = 0; w < world.num_workers(); ++w) {
    const Worker& worker = world.worker(w);
    for (const auto& line : worker.exchange.Snapshot(world.now).operations)
      return absl::StrCat("an operation stays open in phase ", line.phase, ": ", line.key);
    if (worker.exchange.num_open_operations() != 0) return "an operation stays open";
    if (!worker.records.empty()) return "a record stays";
    if (!worker.wires.empty()) return "a region stays open for rows";
    if (!worker.moves.empty()) return "a move stays";
    const bool over = std::all_of(world.groups.begin(), world.groups.end(),
                                  [](const Group& group) { return group.ended; });
    if (!worker.held.empty()) return "rows that have gone ahead stay held";
    const Staging& staging = worker.exchange.staging();
    if (staging.num_landings() != 0) return "an eager buffer stays taken for rows of others";
    if (over && !worker.arenas.empty()) return "arenas stay";
    for (const ArenaSetId set : worker.arenas) {
      const std::vector<SessionId> sessions = staging.SessionsOf(set);
      const bool wanted = std::any_of(sessions.begin(), sessions.end(), [&](SessionId session) {
        return world.alive.contains(session) || world.lingering.contains(session);
      });
      if (!wanted) return "arenas of sessions stay that are all gone";
    }
    const uint64_t eager_bytes = over ? 0 : staging.eager_bytes();
    if (staging.pool().in_use_bytes() != eager_bytes) return "staging stays in use";
  }
  return "";
}

constexpr Invariant kInvariants[] = {
    {"records", Records},         {"answers", Answers},     {"eager buffers", EagerBuffers},
    {"truth", RowsAheadAreTrue},  {"truth", Truth},         {"pairing", Pairing},
    {"truth", SiteCallsAreTrue},  {"agreement", Agreement}, {"exclusion", Exclusion},
    {"arenas", Arenas},           {"reach", Reach},         {"isolation", Isolation},
    {"deadlines", DeadlinesHold}, {"order", Order},         {"mapping", Mapping},
    {"arming", Arming},           {"pool", Pool},           {"progress", Progress},
    {"return", Return},
};

constexpr const char* kEffectNames[] = {
    "link",         "open record",   "decide record",   "close record", "name eager buffers",
    "end direct",   "await direct",  "await streams",   "answer",       "commit pages",
    "cancel pages", "create arenas", "drop arenas",     "tenant ready", "drained",
    "move rows",    "take turn",     "cancel move",     "count routes", "send",
    "open wire",    "send rows",     "send rows ahead", "land rows",    "drop rows",
    "close wire",   "tenant broken", "evict",           "log"};
static_assert(std::size(kEffectNames) == std::variant_size_v<Effect>);

}  // namespace

std::span<const Invariant> Invariants() { return kInvariants; }

std::string Describe(const Happening& h) {
  if (h.effect == nullptr) return h.As<StepIsOver>() == nullptr ? "" : "--";
  std::string text =
      absl::StrCat("worker ", h.worker->index, " asks: ", kEffectNames[h.effect->index()]);
  if (const auto* e = h.As<AnswerSubmission>())
    absl::StrAppend(&text, " session ", e->submission.session.value, " operation ",
                    e->operation.value, " ", e->status.ToString());
  if (const auto* e = h.As<DecideRecord>())
    absl::StrAppend(&text, " operation ", e->operation.value, " ", e->status.ToString());
  if (const auto* e = h.As<SendToPeer>())
    absl::StrAppend(&text, " step ", static_cast<int>(e->message.step), " to run ", e->peer.value);
  if (const auto* e = h.As<ReportTenantBroken>()) absl::StrAppend(&text, " ", e->cause.ToString());
  return text;
}

}  // namespace epd::world
