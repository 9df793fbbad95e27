// What the engine asks for, done and checked.
#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "tests/unit/daemon/worker/exchange_world.h"

namespace epd::simulation {
namespace {

std::string WithoutPlace(absl::string_view text) {
  const size_t colon = text.find(": ");
  return std::string(colon == absl::string_view::npos ? text : text.substr(colon + 2));
}

}  // namespace

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
  exchange_.PagesCommitted(e.operation,
                           memory_suffices_ || Chance(97)
                               ? absl::OkStatus()
                               : absl::ResourceExhaustedError("the node has no memory"),
                           now_);
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

void Simulation::Do(const ReportTenantReady& report) {
  ReportTenantReady e = report;
  SimGroup& group = groups_[e.group.value - 1];
  if (Is(Sabotage::kShareArenas) && !group.spec.tenant.empty()) e.set = groups_[0].set;
  for (const SimGroup& other : groups_) {
    if (&other != &group && !other.broken && other.set == e.set && other.members != group.members)
      Violate("tenants of different sessions were given the same arenas");
  }
  sessions_of_[e.set] = group.members;
  group.set = e.set;
  if (!arenas_.contains(e.set)) Violate("a tenant is ready without arenas");
}

void Simulation::Do(const NameEagerBuffers& e) {
  const auto found = call_of_.find(e.submission);
  if (found != call_of_.end()) calls_[found->second].told = e.eager_buffer_of_rank;
}

void Simulation::Do(const AnswerSubmission& e) {
  if (answered_early_.erase(e.submission) > 0) return;
  if (stray_.erase(e.submission) > 0) return;
  const auto found = call_of_.find(e.submission);
  if (found == call_of_.end()) return Violate("a use was answered that is not open");
  Call& call = calls_[found->second];
  call_of_.erase(found);
  if (!call.dead) TakeAnswer(call, e);
}

void Simulation::TakeAnswer(Call& call, const AnswerSubmission& answer) {
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
      return call.told.empty() ? TakeRegion(call, answer) : TakeEagerBuffers(call, answer);
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

void Simulation::TakeRegion(Call& call, const AnswerSubmission& answer) {
  call.state = CallState::kCopying;
  call.operation = answer.operation;
  if (decided_.contains(call.operation)) Violate("a rank is to stage what was decided");
  eager_areas_[call.set] = answer.region.eager;
  if (answer.region.offset < answer.region.eager.num_eager_buffers * kEagerBufferBytes) {
    Violate("a region overlaps the eager buffers");
  }
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

void Simulation::TakeEagerBuffers(Call& call, const AnswerSubmission& answer) {
  const auto decided = decided_.find(answer.operation);
  if (decided == decided_.end() || !decided->second.good) {
    Violate("eager buffers may be read without a good outcome on record");
  }
  call.state = CallState::kReading;
  call.operation = answer.operation;
  if (call.told.size() != groups_[call.group].spec.num_ranks)
    return Violate("eager buffers are missing");
  for (const Call& peer : calls_) {
    if (peer.identity != call.identity || peer.dead) continue;
    if (peer.eager_buffer != call.told[peer.rank])
      Violate("a rank is told an eager buffer that its peer did not say");
    if (peer.told.empty())
      Violate("the outcome is good before every rank was told the eager buffers");
  }
}

void Simulation::EndCall(Call& call, const absl::Status& status) {
  for (const Call& peer : calls_) {
    if (!call.told.empty() && !peer.dead && peer.state == CallState::kReading &&
        peer.operation == call.operation && &peer != &call) {
      Violate("an eager buffer came back while a peer may read it");
    }
  }
  call.state = CallState::kEnded;
  call.failed = !status.ok();
  ++(status.ok() ? result_.num_good : result_.num_failed);
  SimGroup& group = groups_[call.group];
  ProgramRun& run = group.runs[call.rank][call.program];
  if (call.session == group.members[call.rank]) {
    --run.num_running;
    if (!status.ok()) run.ordinals.clear();  // The execution is over on this rank.
  }
  if (absl::StrContains(status.message(), "different programs") &&
      call.formation == group.formation &&
      std::exchange(group.diverged, WithoutPlace(status.message())) !=
          WithoutPlace(status.message())) {
    MeetAnew(group);
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
      std::stable_partition(effects.begin(), effects.end(), [](const Effect& e) {
        return std::holds_alternative<AnswerSubmission>(e);
      });
    }
    if (Is(Sabotage::kLateEagerBuffers)) {
      std::stable_partition(effects.begin(), effects.end(), [](const Effect& e) {
        return !std::holds_alternative<NameEagerBuffers>(e);
      });
    }
    for (Effect& effect : effects) {
      if (auto* eager = std::get_if<NameEagerBuffers>(&effect)) {
        if (Is(Sabotage::kForgetEagerBuffers) && Chance(20)) continue;
        if (Is(Sabotage::kWrongEagerBuffer)) eager->eager_buffer_of_rank[0] ^= 1;
      }
      if (auto* answer = std::get_if<AnswerSubmission>(&effect);
          answer != nullptr && answer->operation) {
        if (Is(Sabotage::kDropAnswer) && Chance(5)) continue;
        if (Is(Sabotage::kDoubleAnswer) && Chance(5)) Do(*answer);
        if (Is(Sabotage::kFlipOutcome) && Chance(5)) answer->status = absl::InternalError("x: y");
        if (Is(Sabotage::kOtherCause) && !answer->status.ok() && Chance(20)) {
          answer->status = absl::InternalError("x: another cause");
        }
        if (Is(Sabotage::kSharedRegion))
          answer->region.offset = answer->region.eager.num_eager_buffers * kEagerBufferBytes;
        if (Is(Sabotage::kRegionInEagerBuffers)) answer->region.offset = 0;
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

}  // namespace epd::simulation
