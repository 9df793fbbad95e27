// Private to span_simulation*.cc.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/control/cut_off.h"
#include "daemon/worker/engine/exchange.h"
#include "tests/unit/daemon/worker/span_simulation.h"

namespace epd {

// Each "node" is a member, a worker: the first two are GPUs of one node.
inline constexpr int kNodes = 3;
inline constexpr int kRanksPerNode = 2;
inline constexpr int kRanks = kNodes * kRanksPerNode;
inline constexpr int kGroups = 6;  // Group g is led by node g % 3.
inline constexpr int kNames = 2;   // Independent calls of a rank.

// One rank's calls of one name, one after the other.
struct Caller {
  enum class State { kIdle, kAnnouncing, kCopying, kPublishing, kReading, kPulling };
  State state = State::kIdle;
  uint64_t begun = 0;  // Raw number of the next execution.
  Submission submission;
  OperationId operation;
  uint64_t number = 0;
  RegionView region;
};

struct RowsInFlight {
  PeerOperation operation;
  int to = 0;
  Rank rank;
};

struct OpenRegion {
  ArenaSetId set;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

struct SimNode {
  explicit SimNode(int index, uint64_t staging)
      : exchange({.staging_bytes = staging,
                  .device_staging_bytes = uint64_t{256} << 20,
                  .self = Incarnation(100 + index)}) {}
  Exchange exchange;
  std::map<PeerOperation, OpenRegion> open;
  std::map<Submission, std::pair<int, std::pair<int, int>>> submissions;  // -> group, rank, name.
  std::set<OperationId> records;
};

struct MoveUnderWay {
  int node = 0;
  OperationId operation;
};

// A move by a communicator, on one of its members.
struct DeviceMove {
  enum class State { kPreparing, kPrepared, kIssue };
  State state = State::kPreparing;
  int node = 0;
  OperationId operation;
  PeerOperation name;
  uint64_t epoch = 0;
  uint64_t place = 0;
};

struct SimGroup {
  uint64_t formation = 0;
  uint64_t epoch = 1;
  bool ended = false;  // This formation has; the next one starts when all calls are over.
  bool leader_lost = false;
  std::vector<ExecutionBase> bases;
  Caller callers[kRanks][kNames];
};

// What is known of one operation over all nodes.
struct SimOperation {
  std::set<Rank> published;
  std::set<std::pair<int, Rank>> landed;
  std::set<int> good;
  std::map<int, std::string> failed;
  std::optional<std::pair<int, int64_t>> logical;  // Name, execution.
};

class SpanWorld {
 public:
  SpanWorld(uint64_t seed, SpanSabotage sabotage);
  SpanSimulationResult Run(int num_events);

 private:
  // span_simulation.cc
  bool Chance(int one_in) { return random_() % static_cast<uint64_t>(one_in) == 0; }
  size_t Pick(size_t size) { return static_cast<size_t>(random_() % size); }
  int NodeOf(int group, int rank) const { return (group + rank / kRanksPerNode) % kNodes; }
  SessionId SessionOf(int group, int rank) const;
  static WorkerId MemberOf(int node) {
    return {NodeId{node < 2 ? "n0" : "n1"}, WorkerName{node % 2}};
  }
  void StartFormation(int group);
  void EndFormation(int group, const absl::Status& cause);
  void Step();
  bool AdvanceCaller(int group, int rank, int name);
  bool DeliverMessage();
  bool DeliverRows();
  bool FinishMove();
  // Two tenants of one group, with the same places: their rows go by one communicator.
  static bool OnDevice(int group) { return group % kNodes == 1; }
  bool AdvanceDeviceMove();
  bool CanEnd(const DeviceMove& move) const;
  void EndDeviceMove(size_t index, const absl::Status& status);
  void LoseStream();
  void Announce(int group, int rank, int name);
  void Publish(int group, int rank, int name);
  void Pulled(int group, int rank, int name);
  // Negative: before the formation.
  int64_t Logical(int group, int rank, int name, uint64_t raw) const;
  void Settle();
  void CheckRest();
  void Violate(const std::string& what);

  // span_simulation_effects.cc
  void Perform(int node);
  void Do(int node, const AnswerSubmission& e);
  void Do(int node, const OpenWire& e);
  void Do(int node, const SendRows& e);
  void Do(int node, const SendToPeer& e);
  void Do(int node, const ReportTenantBroken& e);
  template <typename Other>
  void Do(int, const Other&) {}
  void Do(int node, const CloseWire& e);
  void Do(int node, const OpenRecord& e);
  void Do(int node, const CloseRecord& e);
  void Do(int node, const CommitPages& e);
  void Do(int node, const MoveRows& e);
  void Do(int node, const TakeTurn& e);
  void Do(int node, const CancelMove& e);
  void CheckOverlap(int node, const PeerOperation& operation, const OpenRegion& region);

  std::mt19937_64 random_;
  const SpanSabotage sabotage_;
  absl::Time now_ = absl::UnixEpoch();
  std::deque<SimNode> nodes_;
  SimGroup groups_[kGroups];
  std::map<std::pair<int, int>, std::deque<PeerMessage>> streams_;
  std::vector<RowsInFlight> rows_;
  std::vector<MoveUnderWay> moves_;
  std::vector<DeviceMove> device_moves_;
  uint64_t communicator_epoch_ = 1;
  // By epoch and place: the operation, and how many members have taken part.
  std::map<std::pair<uint64_t, uint64_t>, std::pair<PeerOperation, int>> places_;
  std::map<std::pair<int, uint64_t>, uint64_t> next_place_;  // By node and epoch.
  std::map<PeerOperation, SimOperation> operations_;
  bool quiet_ = false;  // No more calls, faults or lost streams.
  uint32_t next_claim_ = 2;
  int events_ = 0;
  SpanSimulationResult result_;
};

}  // namespace epd
