// The simulated world around the engine: clients, deaths, time; see exchange_simulation.h.
#pragma once

#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/worker/engine/exchange.h"
#include "tests/unit/daemon/worker/exchange_simulation.h"

namespace epd::simulation {

inline constexpr absl::Duration kAbsent = absl::Seconds(60);
inline constexpr absl::Duration kUndecided = absl::Seconds(30);
inline constexpr absl::Duration kHold = absl::Seconds(30);
inline constexpr uint64_t kEagerBufferBytes = 2 * 4096;
inline constexpr uint32_t kNumPrograms = 3;  // The last one is a name.
inline constexpr uint32_t kOrdinals = 3;     // Operations of one execution.

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
  Submission submission;
  OperationId operation;
  ArenaSetId set;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  std::optional<uint8_t> eager_buffer = {};  // Where its rows stand.
  std::vector<uint8_t> told = {};            // [R] as the reply says.
  absl::Time since;
  bool dead = false;  // Its session is.
  bool failed = false;

  bool open() const {
    return state == CallState::kAnnounced || state == CallState::kPublished ||
           state == CallState::kPulled;
  }
  bool holds() const { return state == CallState::kCopying || state == CallState::kReading; }
};

// One program on one rank: its executions one after the other, their operations in the rank's own
// order.
struct ProgramRun {
  uint64_t raw = 0;                // Of the running execution.
  uint64_t begun = 0;              // One above the highest.
  std::vector<uint32_t> ordinals;  // Still to issue in this execution.
  int num_running = 0;
  uint64_t own = 0;             // From this raw number on,
  uint64_t skipped = 0;         // so many executions are the others' alone; before it,
  uint64_t skipped_before = 0;  // so many.

  uint64_t Skipped(uint64_t raw_number) const {
    return raw_number >= own ? skipped : skipped_before;
  }
};

// A call that is to be made, and what it will say.
struct Coming {
  Call call;
  shm::SlotRequest request;
};

struct SimGroup {
  GroupSpec spec;
  uint64_t formation = 0;
  std::vector<SessionId> members;
  std::vector<std::vector<ProgramRun>> runs;  // [rank][program]
  std::vector<std::vector<uint64_t>> bases;   // [rank][program]
  ArenaSetId set;
  bool broken = false;
  bool drained = false;
  std::string diverged;  // With what the ranks were last told so.
};

struct Ending {
  bool good = false;
  std::string cause;
};

class Simulation {
 public:
  Simulation(uint64_t seed, Sabotage sabotage)
      : random_(seed),
        sabotage_(sabotage),
        exchange_(
            {.staging_bytes = 16 * 4096 * (1 + Roll(4)),
             .hold_limit = kHold,
             .eager = {.buffer_bytes = kEagerBufferBytes, .max_buffers = 3, .pool_share = 2}}) {}

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
  void Refill(ProgramRun& run, uint32_t program);
  std::optional<Coming> NextCall(size_t g, uint32_t rank, uint32_t program);
  void MeetAnew(SimGroup& group);
  Coming MakeCall(size_t g, uint32_t rank, uint32_t program, uint32_t ordinal);
  void Announce(Coming coming);
  std::vector<Coming> LateCalls(size_t g);
  void GoOn();
  void NextSubmission(Call& call);
  void KillSession();
  void Kill(SessionId session, bool process_alive);
  std::vector<size_t> CallsWithout(SessionId session) const;
  void Hostile();
  void FinishMoves(bool all);
  void Advance(absl::Duration by);
  void Finish();
  Submission NewSubmission(SessionId session) { return Submission{session, 0, ++claim_}; }

  // The engine's effects.
  void Perform();
  void Do(const LinkSubmission&) {}
  void Do(const OpenRecord& e);
  void Do(const DecideRecord& e);
  void Do(const CloseRecord& e);
  void Do(const NameEagerBuffers& e);
  void Do(const AnswerSubmission& e);
  void Do(const CommitPages& e);
  void Do(const CreateArenas& e) { arenas_.insert(e.set); }
  void Do(const DropArenas& e);
  void Do(const ReportTenantReady& e);
  void Do(const ReportTenantDrained&) {}
  void Do(const MoveRows& e) { moving_.push_back(e.operation); }
  void Do(const CountRoutes&) {}
  void Do(const EvictSession& e) { evicted_.insert(e.session); }
  void Do(const LogLine&) {}
  // Of groups on several nodes, which span_simulation.cc runs.
  void Do(const SendToPeer&) {}
  void Do(const OpenWire&) {}
  void Do(const SendRows&) {}
  void Do(const TakeTurn&) {}
  void Do(const CancelMove&) {}
  void Do(const CloseWire&) {}
  void Do(const ReportTenantBroken&) {}
  void TakeAnswer(Call& call, const AnswerSubmission& answer);
  void TakeRegion(Call& call, const AnswerSubmission& answer);
  void TakeEagerBuffers(Call& call, const AnswerSubmission& answer);
  std::optional<uint8_t> FreeEagerBuffer(const SimGroup& group, SessionId session);
  void EndCall(Call& call, const absl::Status& status);

  // The invariants.
  void CheckWaits();
  void CheckEnd();

  std::mt19937_64 random_;
  const Sabotage sabotage_;
  Exchange exchange_;
  SimulationResult result_;
  int step_ = 0;
  bool memory_suffices_ = false;  // For now: no commit fails.
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
  std::map<Submission, size_t> call_of_;
  std::map<ArenaSetId, EagerArea> eager_areas_;  // As replies told.
  std::set<Submission> answered_early_;
  std::set<Submission> stray_;  // Hostile uses that are not answered yet.
  std::map<OperationId, Ending> decided_;
  std::set<OperationId> records_;
  std::map<Identity, Ending> endings_;
  std::map<OperationId, std::tuple<ArenaSetId, uint64_t, uint64_t>> regions_;
  std::vector<OperationId> moving_;
  std::set<ArenaSetId> arenas_;
  std::map<ArenaSetId, std::vector<SessionId>> sessions_of_;
};

}  // namespace epd::simulation
