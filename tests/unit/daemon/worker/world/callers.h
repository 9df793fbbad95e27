// Ranks whose CPUs call: programs and threads that issue in different orders, deaths, deadlines, drains, evictions, hostile
// steps, workers that lose each other, and an epd that forms anew what has ended.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "tests/unit/daemon/worker/world/calls.h"
#include "tests/unit/daemon/worker/world/world.h"

namespace epd::world {

inline constexpr uint8_t kMaxPrograms = 3;  // The last one is a name.

enum class Event {
  kCall,         // A rank begins a call,
  kGoOn,         // or takes the next step of one.
  kMove,         // The worker's mover does something.
  kPages,        // The worker has made an operation's pages.
  kMessage,      // A message arrives at another worker,
  kRows,         // or rows do.
  kTime,         // A little time passes,
  kLongTime,     // or as much as an operation may take.
  kHostile,      // A client says anything.
  kFreeze,       // A rank does nothing for now.
  kThaw,         // All do something again.
  kKill,         // A session ends; perhaps its process lives.
  kProcessGone,  // It does not any more.
  kControl,      // epd drains a group, or forms it anew.
  kCut,          // Two workers lose each other.
};

struct CallerOptions {
  std::vector<std::pair<int, Event>> events;  // With weights.
  uint8_t num_programs = kMaxPrograms;        // At most.
  uint32_t num_ordinals = 1;                  // Operations of one execution.
  bool prepares = false;                      // Calls are prepares, else dispatches.
  absl::Duration time = absl::Milliseconds(1);
};

class Callers {
 public:
  Callers(World& world, const CallerOptions& options);

  // Sessions of the world's groups call from here on.
  SessionId NewSession();
  void AddGroup(Group group);

  // So many random events, and then what brings everything to its end.
  void Run(int num_events);

  uint64_t num_good() const { return num_good_; }
  uint64_t num_failed() const { return num_failed_; }

 private:
  // One program on one rank: its executions one after the other, their operations in the rank's own order.
  struct ProgramRun {
    uint64_t raw = 0;                // Of the running execution.
    uint64_t begun = 0;              // One above the highest.
    std::vector<uint32_t> ordinals;  // Still to issue in this execution.
    int num_running = 0;
    int num_cut = 0;              // See Call.
    uint64_t own = 0;             // From this raw number on,
    uint64_t skipped = 0;         // so many executions are the others' alone; before it,
    uint64_t skipped_before = 0;  // so many.

    uint64_t Skipped(uint64_t raw_number) const {
      return raw_number >= own ? skipped : skipped_before;
    }
  };
  using Runs = std::vector<std::vector<ProgramRun>>;  // [rank][program]
  // A call that is to be made, and what it will say.
  struct Coming {
    Call call;
    shm::SlotRequest request;
  };

  void Step();
  void Do(Event event);
  uint8_t PickProgram();
  ProgramRun& RunOf(const Group& group, uint32_t rank, uint8_t program);
  void Begin();
  std::optional<Coming> NextCall(Group& group, uint32_t rank, uint8_t program);
  Coming MakeCall(Group& group, uint32_t rank, uint8_t program, uint32_t ordinal);
  void Announce(Coming coming);
  void GoOn();
  void EndCall(const Call& call, const absl::Status& status);
  void MeetAnew(Group& group);

  void Hostile();
  SessionId AnySession();
  void Kill(SessionId session, bool process_alive);
  void EndProcesses();
  void Control(Group& group);
  void FormAnew(Group& group);
  void SetBases(Group& group);
  std::vector<Coming> LateCalls(Group& group);
  bool IsIdle(const Group& group) const;

  void EndEverything();
  void LetEverythingEnd();
  bool CatchUp();

  World& w_;
  Calls calls_;
  const CallerOptions options_;
  const uint8_t num_programs_;
  uint64_t next_session_ = 1;
  std::map<GroupId, Runs> runs_;
  std::set<std::pair<GroupId, uint32_t>> failed_;  // Ranks whose last call has failed.
  std::set<std::pair<GroupId, uint32_t>> frozen_;  // Ranks that do nothing for now.
  std::map<GroupId, std::string> diverged_;        // With what the ranks were last told so.
  uint64_t num_good_ = 0;
  uint64_t num_failed_ = 0;
};

}  // namespace epd::world
