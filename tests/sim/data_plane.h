// The data plane of the cluster: an engine in each worker, streams between them, and the calls of ranks. It shares its
// clock, its network's faults and its deaths with the control plane of world.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/control/node_effects.h"
#include "daemon/control/node_events.h"
#include "tests/unit/daemon/worker/world/calls.h"
#include "tests/unit/daemon/worker/world/world.h"

namespace epd::sim {

// One execution of a program on one rank.
struct RankCall {
  GroupId group;
  Formation formation;
  Rank rank;
  SessionId session;
  uint8_t program = 0;
  uint64_t execution = 0;  // Raw.
  uint64_t base = 0;       // The formation's, of the rank and program.
  int num_cut = 0;         // As world::Call.
};

// What epd and the network would do between control and engines is done here: the engines themselves and what must hold
// of them are those of tests/unit/daemon/worker/world. Workers are counted through over all nodes. Time is what SetTime
// said last; things that take time are handed to `Edge::later`.
class DataPlane {
 public:
  struct Edge {
    // Runs `what` within so long. What is later for one worker stays in order only if `Worker` says so.
    std::function<void(absl::Duration, std::function<void()>)> later;
    // Runs `what` at that time, or now if it has passed.
    std::function<void(absl::Time, std::function<void()>)> at;
    std::function<int(const WorkerId&)> index_of;
    std::function<void(int worker, const NodeEvent&)> tell_epd;  // In order.
    std::function<void(SessionId)> evict;
    std::function<void(const world::Call&, const absl::Status&)> ended;
    std::function<bool(SessionId)> is_slow;  // This step takes seconds.
  };
  DataPlane(int num_workers, uint64_t seed, world::Sabotage sabotage, Edge edge);

  void SetTime(absl::Time now) { w_.now = now; }
  void StopFaults() { w_.quiet = true; }

  // ---- processes ----
  void StartWorker(int worker, Incarnation run, const std::set<SessionId>& sessions);
  // Its open calls end as its records say, once epd has swept; its peers lose their streams to it.
  void KillWorker(int worker, const absl::Status& why);
  // SIGSTOP until then.
  void StopWorker(int worker, absl::Time until);
  void Cut(int a, int b);
  void AddSession(const std::vector<int>& workers, SessionId session);
  // `process_alive`: for some seconds more.
  void EndSession(const std::vector<int>& workers, SessionId session, bool process_alive);
  // It has left all its groups; its session is about to end.
  void SawLeaver(SessionId session) { leavers_.insert(session); }
  void CheckLeavers();
  // Its process is dead; nobody has noticed yet.
  void Abandon(SessionId session) { calls_.Abandon(session); }

  // ---- what epd tells a worker: in order, and after a while ----
  void Tell(int worker, const NodeId& self, const StartTenant& effect);
  void Tell(int worker, const EndTenant& effect);
  void Tell(int worker, const DrainTenant& effect);

  // ---- ranks ----
  void Call(const RankCall& call);
  // No fault is left, and nobody has anything to do.
  void Rest();

  absl::Time NextDeadline() const;
  void Tick();

  const world::World& engines() const { return w_; }
  // "<invariant>: <what>"; empty: all hold.
  std::string violation() const;
  void Trace(std::function<void(const std::string&)> note) {
    w_.on_note = std::move(note);
    w_.Trace();
  }

 private:
  struct Process {
    uint64_t num_runs = 0;
    bool up = false;
    absl::Time stopped_until = absl::InfinitePast();
    absl::Time last_told = absl::InfinitePast();
  };

  Process& process(int worker) { return processes_[static_cast<size_t>(worker)]; }
  // For the run that is there now, in order.
  void Later(int worker, std::function<void()> what);
  // Now, or when the worker goes on.
  void WhenRunning(int worker, std::function<void()> what);
  void Report(int worker, const Effect& effect);
  void AwaitRanks(int worker, const AwaitDirect& effect);
  world::Group& Know(const StartTenant& effect);
  void Start(int worker, const NodeId& self, const StartTenant& effect);
  void Announce(const RankCall& call);
  void Step(size_t index);
  void EndsByRecord(size_t index, const absl::Status& why);
  void CheckOutcome(const world::Call& call, const absl::Status& status);
  void Fail(const std::string& invariant, const std::string& what);

  Edge edge_;
  world::World w_;
  world::Calls calls_;
  std::vector<Process> processes_;
  std::map<std::pair<world::Identity, int>, bool> outcome_of_;  // By worker: good or not.
  std::set<SessionId> leavers_;
  std::set<SessionId> lingered_;  // Processes that lived on, and may have written staging.
  std::string violation_;
};

}  // namespace epd::sim
