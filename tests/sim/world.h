// A whole cluster in one thread: a coordinator, nodes with some workers each, clients, and a bad
// network between them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "daemon/control/node_control.h"
#include "daemon/control/rendezvous.h"
#include "daemon/worker/staging/staging_pool.h"
#include "tests/sim/data_plane.h"
#include "tests/sim/invariants.h"
#include "tests/sim/options.h"
#include "tests/sim/rng.h"

namespace epd::sim {

// A rank that calls, one call after the other.
struct RankLoop {
  bool busy = false;  // It has a call open, or is about to begin one.
  int num_cut = 0;    // See world::Call.
  int failed_since_heal = 0;
  int good_since_heal = 0;
};

// What a client knows about one of its groups.
struct Part {
  std::string name;
  std::string group_name;  // Whatever the tenant.
  Incarnation coordinator;
  Formation formation;
  Epoch epoch;
  std::vector<Rank> ranks;
  bool serving = false;  // Joined and no Reform since.
  bool wait = false;     // In Reform: calls wait for the next Joined.
  bool drained = false;  // Has said so.
  bool fresh = false;    // Joined, and nothing begun since.
  std::map<std::pair<Rank, ProgramId>, uint64_t> begun;
  // With a data plane:
  std::map<Rank, RankLoop> loops;
  std::set<std::pair<Formation, Rank>> open;  // Calls.
  std::set<Rank> failed;                      // Whose last call has.
};

struct Client {
  size_t node = 0;
  uint64_t node_incarnation = 0;
  SessionId session;
  int32_t pid = 0;
  bool alive = true;
  absl::Time left_at = absl::InfinitePast();  // Some group, by itself.
  bool left_for_good =
      false;  // It has left all its groups and ended its session; its process lives on.
  uint64_t next_request = 1;
  std::map<GroupId, Part> parts;
  std::map<RequestId, std::pair<std::string, std::vector<Rank>>> joining;
  std::map<RequestId, absl::Time> join_deadlines;  // Of its node's time.
  std::map<std::string, Epoch> epochs_seen;
  absl::Time last_sent;  // The socket keeps the order, in both directions.
  absl::Time last_received;
};

struct Worker {
  uint64_t incarnation = 0;  // Zero: down.
  absl::Time died_at = absl::InfinitePast();
  std::unique_ptr<StagingPool> pool;
  std::map<std::pair<GroupId, Formation>, ArenaSetId> tenants;
  absl::Time last_said = absl::InfinitePast();  // Its socket keeps the order.
};

struct Node {
  std::string name;
  uint64_t incarnation = 0;
  absl::Duration skew;    // Its clock is the world's plus this,
  absl::Duration behind;  // and its time is so much behind that: what it lost in freezes.
  std::unique_ptr<NodeControl> control;  // Null: crashed.
  uint64_t connection = 0;               // Zero: none.
  bool has_nccl = true;
  std::map<WorkerName, Worker> workers;
  std::set<SessionId> sessions;  // As its epd sees them.
  // To tell stale deliveries.
  uint64_t newest_view = 0;
  uint64_t newest_report = 0;                    // Taken by the present coordinator.
  absl::Time cut_off_at = absl::InfinitePast();  // Last seen without a connection, or restarted.
};

class World {
 public:
  explicit World(const Options& options);
  ~World();
  Outcome Run();

 private:
  // ---- world.cc: time, faults, checks ----
  void At(absl::Duration delay, std::function<void()> what);
  absl::Duration Delay(int max_ms);
  bool Step(absl::Time until);
  void RandomAction();
  void Settle();
  void CheckStep();
  void CheckSettled();
  void Log(const std::string& line);
  bool traces() const { return options_.verbose || options_.trace; }
  uint64_t Fresh() { return rng_.Next() | 1; }

  // ---- world_node.cc: nodes, the coordinator, the network ----
  void StartNode(size_t i);
  void CrashNode(size_t i);
  void StartCoordinator();
  void CrashCoordinator();
  void StopCoordinator();
  bool CoordinatorStopped() const { return now_ < stopped_until_; }
  std::set<NodeId> LostNodes() const;
  void Connect(size_t i);
  void Disconnect(size_t i);
  size_t Give(size_t i, const NodeEvent& event);  // Returns how many effects, without reports.
  void Perform(size_t i, const NodeEffect& effect);
  Formation ServedAsHeard(size_t i, GroupId group) const;
  void PerformAll(const Rendezvous::Effects& effects);
  void SendToCoordinator(size_t i, NodeReport report);
  void SendToNode(ClusterView view);
  void CarryReport(size_t i, uint64_t connection, Incarnation to, const NodeReport& report);
  void DeliverReport(size_t i, const NodeReport& report);
  void DeliverView(size_t i, uint64_t incarnation, const ClusterView& view);
  void FreezeAll();
  void NotePatientJoins();
  bool NodesAreAsBefore(const std::set<NodeId>& lost_before) const;
  // A point of the node's time, by the world's clock, and the other way round.
  absl::Time ClockOf(size_t i, absl::Time time) const {
    return time - nodes_[i].skew + nodes_[i].behind;
  }
  absl::Time NodeNow(size_t i) const { return now_ + nodes_[i].skew - nodes_[i].behind; }
  absl::Time CoordinatorNow() const { return now_ - coordinator_behind_; }
  size_t IndexOf(const NodeId& id) const;

  // ---- world_worker.cc ----
  void StartWorker(size_t i, const WorkerName& name);
  void StartWorkers(size_t i);
  void CrashWorker(size_t i, const WorkerName& name);
  WorkerName RandomWorker();
  bool WorkersLive(const GroupTransition& transition) const;
  void ToWorker(size_t i, const StartTenant& effect);
  void ToWorker(size_t i, const EndTenant& effect);
  void ToWorker(size_t i, const DrainTenant& effect);
  void ToWorker(size_t i, const MakeUniqueId& effect);
  void ToWorker(size_t i, const InitCommunicator& effect);
  template <typename E>
  void FromWorker(size_t i, const WorkerName& name, E event);
  void GiveAsOfOthers(size_t i, const WorkerName& name, const NodeEvent& answer);
  void FromEngine(size_t i, const WorkerName& name, const NodeEvent& event);
  int WorkerIndex(size_t i, const WorkerName& name) const;  // Over all nodes.
  std::vector<int> WorkersOf(size_t i) const;
  void UseStaging(size_t i);

  // ---- world_client.cc ----
  int NumNames() const;  // Of groups.
  uint32_t NumRanks(int which) const;
  void NewClient();
  std::optional<size_t> Attach(size_t i);
  std::set<Rank> TakenRanks(const std::string& title) const;
  void JoinSomething(size_t c);
  void Join(size_t c, int which, GroupSpec spec, std::vector<Rank> ranks);
  void Leave(size_t c);
  void LeaveForGood(size_t c);
  void Crash(size_t c);
  void Operate(size_t c);
  void SendDrained(size_t c, GroupId group);
  void ToNode(size_t c, const NodeEvent& event);
  void FromNode(size_t i, SessionId session, std::function<void(size_t)> what);
  void OnJoined(size_t c, const ReplyJoined& joined, const std::vector<Rank>& ranks);
  void OnReform(size_t c, const NotifyReform& reform);
  GroupSpec SpecOf(int which, int instance, int tenant);
  void CheckUnharmed(const GroupTransition& transition);
  bool IsSound(const RankHolder& member) const;
  void Order(size_t i);
  Who WhoOf(size_t c) const;
  std::optional<size_t> RandomClient();
  bool Lives(size_t c) const;

  // ---- world_calls.cc: with a data plane ----
  void MakeDataPlane();
  void RunWhole();
  void ActOnWhole();
  void LaunchJob(int which);
  void SawSession(size_t i, const NodeEvent& event);
  void BeginTurns(size_t c, GroupId group);
  void Turn(size_t c, GroupId group, Rank rank);
  void BeginCall(size_t c, GroupId group, Rank rank);
  void CallEnded(const world::Call& call, const absl::Status& status);
  void MaybeDrain(size_t c, GroupId group);
  void MoreCalls(GroupId group, Formation formation, uint64_t num);
  void CutNodes(size_t a, size_t b);
  void StopWorker(size_t i, const WorkerName& name);
  // Something has happened that calls of the group may fail for.
  void Touch(const std::string& group_name) { touched_[group_name] = now_; }
  void TouchClient(size_t c);
  void TouchWorker(int worker);
  bool IsCalledYet(const world::Group& group) const;
  void CheckCause(const world::Call& call, const absl::Status& status);
  void Heal();
  void CheckHealed();

  Options options_;
  Rng rng_;
  absl::Time start_ = absl::FromUnixSeconds(1700000000);
  absl::Time now_ = start_;
  std::map<std::pair<absl::Time, uint64_t>, std::function<void()>> queue_;
  uint64_t next_event_ = 1;
  bool faults_ = true;
  int steps_ = 0;
  int stuck_ = 0;
  std::vector<Node> nodes_;
  std::vector<Client> clients_;
  std::unique_ptr<Rendezvous> coordinator_;
  absl::Time stopped_until_ = absl::InfinitePast();  // The coordinator.
  absl::Duration coordinator_behind_;
  absl::Time thawed_at_ = absl::InfinitePast();        // All, after the last freeze.
  std::set<std::pair<SessionId, RequestId>> patient_;  // Joins that had time left when it began.
  std::set<std::string> overdue_;  // Groups that a join's deadline has ended, until all have heard.
  uint64_t next_connection_ = 1;
  uint64_t next_session_ = 1;
  uint64_t next_order_ = 1;
  uint64_t next_arena_set_ = 1;
  std::vector<ClusterView> old_views_;
  std::vector<NodeReport> old_reports_;
  std::string last_id_;
  std::unique_ptr<DataPlane> data_;                          // Null: workers only answer.
  std::map<std::pair<GroupId, Formation>, uint64_t> quota_;  // Of calls of each rank.
  std::map<std::string, absl::Time> touched_;
  Invariants invariants_;
  Outcome outcome_;
};

}  // namespace epd::sim
