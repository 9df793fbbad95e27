// GPU streams on several nodes around an engine per node: ranks whose sites arm slots with constants, ordered
// streams between the workers that delay and break, moves by a communicator; see
// stream_span_simulation_test.cc.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "daemon/worker/engine/exchange.h"

namespace epd::stream_span {

// What the way between the workers does wrong on purpose.
enum class Sabotage {
  kNone,
  kLoseMessage,   // One in fifty is lost, and the stream goes on.
  kForgetApart,   // Nobody hears that what failed was of streams that had not met.
  kForgetCause,   // The leader does not hear what a call has wrong.
  kForgetStream,  // The leader does not hear that a call comes from a stream.
  kForgetDemand,  // The leader does not hear how many slots a rank needs.
};

inline constexpr int kNodes = 3;
inline constexpr uint32_t kRanks = 4;
inline constexpr int kNodeOf[kRanks] = {0, 1, 1, 2};
inline constexpr uint32_t kSites = 3;
inline constexpr uint64_t kCapacity = 64;

class World {
 public:
  World(uint64_t seed, Sabotage sabotage);

  // `num_events` random ones, then a fair time without faults in which every stream must go on. The first
  // broken rule, "" for none.
  std::string Run(int num_events);

  uint64_t num_good() const { return num_good_; }
  uint64_t num_refused() const { return num_refused_; }
  uint64_t num_skipped() const { return num_skipped_; }
  uint64_t num_formations() const { return formation_; }

 private:
  enum class Pc { kAnnounce, kWaitAnnounce, kPublish, kWaitPublish, kPulled };
  using OperationName = std::pair<uint64_t, uint64_t>;  // Formation, number.
  // Of one rank.
  struct Stream {
    uint32_t site = 0;
    Pc pc = Pc::kAnnounce;
    uint64_t cycle = 0;  // Uses so far: their truth follows from it.
    Submission submission;
    OperationName operation;
    bool touching = false;
    uint64_t entered = 1;  // The formation that its requests speak for.
    uint64_t spoke_for = 1;
  };
  struct Move {
    int node = 0;
    OperationId operation;
    uint64_t formation = 0;
    bool prepared = false;
    std::optional<uint64_t> place;
  };
  // How a use ended.
  struct End {
    uint64_t cycle = 0;
    absl::StatusCode code = absl::StatusCode::kOk;
  };

  uint64_t Roll(uint64_t sides) { return random_() % sides; }
  void Violate(const std::string& what);
  bool Overflows(uint32_t rank, uint64_t cycle) const;
  bool HasPlan(uint32_t rank, uint64_t cycle) const;

  void StartFormation();
  TenantStart StartOf(int node) const;
  void StreamStep(uint32_t rank);
  void Take(uint32_t rank, shm::Step step);
  void NoteEnd(uint32_t rank, absl::StatusCode code);
  void CheckStreamRegions();
  void CheckEnds();
  void CheckSubmission(const std::map<uint32_t, End>& ends);
  bool Deliver();
  bool AdvanceMove();
  void EndMove(size_t index, const absl::Status& status);
  void LoseStream();
  void Settle();
  void FairRound();

  void Perform(int node);
  void Do(int node, const AnswerSubmission& e);
  void Do(int node, const SendToPeer& e);
  void Do(int node, const MoveRows& e);
  void Do(int node, const TakeTurn& e);
  void Do(int node, const CancelMove& e);
  void Do(int node, const ReportTenantBroken& e);
  template <typename Other>
  void Do(int, const Other&) {}

  std::mt19937_64 random_;
  const uint64_t seed_;
  const Sabotage sabotage_;
  absl::Time now_ = absl::UnixEpoch();
  std::deque<Exchange> nodes_;
  std::array<Stream, kRanks> streams_;
  std::map<std::pair<int, int>, std::deque<PeerMessage>> wires_;
  std::map<Submission, AnswerSubmission> answers_;
  std::vector<Move> moves_;
  std::map<OperationName, int> turns_;  // By formation and place: who has taken part.
  uint64_t formation_ = 0;
  bool ended_ = false;
  bool quiet_ = false;
  uint32_t claim_ = 1;
  std::map<OperationName, std::map<uint32_t, uint64_t>> met_;  // Cycles of the ranks in it.
  std::map<OperationName, std::map<uint32_t, bool>> published_;
  std::map<uint64_t, std::map<uint32_t, std::vector<End>>> ends_;  // By formation and rank.
  uint64_t num_good_ = 0;
  uint64_t num_refused_ = 0;
  uint64_t num_skipped_ = 0;
  std::string violation_;
};

}  // namespace epd::stream_span
