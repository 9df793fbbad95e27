// GPU streams around the engine: ranks whose sites arm slots with constants, in one order, for ever;
// a worker that goes through the slots one by one and may be replaced; see stream_simulation_test.cc.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "daemon/worker/engine/exchange.h"
#include "proto/epd/v1/slot_word.h"

namespace epd::streams {

// What the surroundings do wrong on purpose.
enum class Sabotage {
  kNone,
  kAnswerAtOnce,   // An announce is answered although its site's last pulled is not claimed.
  kSpeakUnmapped,  // A session says that it has mapped new staging, and has not.
  kLeaveOpen,      // A dead worker's uses are answered by nobody.
  kForgetStream,   // The worker does not look at slots that ring nothing.
  kTellLate,       // A stream arms its announce, and says then how many slots its rank needs.
  // Client executor only.
  kPushUngated,  // A stream pushes its rows whatever its announce was answered with.
  kPushLate,     // A stream says that its rows are pushed, and pushes them then.
};

// Steps of a stream at one site.
enum class Pc {
  kTell,
  kArmAnnounce,
  kTellLate,  // Of a sabotage.
  kWaitAnnounce,
  kCopy,
  kArmPublish,
  kCopyLate,  // Of a sabotage.
  kWaitPublish,
  kRead,
  kArmPulled,
};

class StreamWorld {
 public:
  static constexpr uint32_t kNumRanks = 2;
  static constexpr uint32_t kMaxSites = 2;
  static constexpr uint64_t kCapacity = 64;  // Slots of a call.

  StreamWorld(uint64_t seed, Executor executor, Sabotage sabotage);

  // `num_events` random ones, then a fair time without faults in which every stream must go on.
  // Returns the first broken rule, "" for none.
  std::string Run(int num_events);

  uint64_t num_good() const { return num_good_; }
  uint64_t num_bad() const { return num_bad_; }
  uint64_t num_replaced() const { return num_replaced_; }
  uint64_t num_overflows() const { return num_overflows_; }

  // ---- for a walk over all orders of events (stream_walk_test.cc) ----

  // Streams end once each has made `num_cycles` uses, and workers are replaced so many times at most.
  struct Limits {
    uint64_t num_cycles = 0;
    uint64_t num_replacements = 0;
  };
  // What may happen next.
  enum class Event : uint8_t {
    kStream0,
    kStream1,
    kClaim,
    kMoveGood,
    kMoveBad,
    kRemap0,
    kRemap1,
    kReplace
  };
  static constexpr int kNumEvents = 8;
  bool MayHappen(Event event, const Limits& limits) const;
  void Happen(Event event);
  // A stream's step that nobody else sees or changes, if there is one: no order of it and others matters.
  std::optional<Event> Unseen(const Limits& limits) const;
  // Two worlds with the same one go on alike.
  std::string Fingerprint() const;
  bool AllEnded(const Limits& limits) const;
  const std::string& violation() const { return violation_; }

 private:
  struct Slot {
    uint64_t word = 0;
    uint32_t last_claim = 1;
    shm::SlotRequest request = {};
    OperationId linked;       // Of the open claim.
    OperationId answered_as;  // Of the last good answer.
  };
  struct Site {
    std::array<Slot, 3> slots;  // By step.
  };
  struct Rank {
    std::vector<Site> sites;
    uint32_t site = 0;
    Pc pc = Pc::kTell;
    uint64_t num_cycles = 0;
    uint64_t mapped = 1;    // The formation whose staging stands at the eager buffer's address.
    OperationId in_region;  // Whose rows stand in the stage of the own stream region,
    OperationId out;        // and in its output. Client executor:
    std::array<OperationId, kNumRanks>
        pushed;  // by sender, whose rows its peers put into its eager buffer.
    bool touching = false;
    OperationId touched;
  };

  uint64_t Roll(uint64_t sides) { return random_() % sides; }
  bool Is(Sabotage sabotage) const { return sabotage_ == sabotage; }
  void Violate(const std::string& what);
  static uint32_t SlotIndex(uint32_t site, uint32_t step) { return site * 3 + step; }
  Slot& SlotOf(const Submission& submission);

  void Form();
  void WriteRequests(uint32_t rank);
  void ScanNext();
  bool IsArmed(uint32_t slot) const;
  void RandomEvent();
  void FairRound();
  void StreamStep(uint32_t rank);
  bool Overflows(uint32_t rank) const;
  bool HasPlan(uint32_t rank) const;
  void Tell(uint32_t rank);
  void CheckTold(uint32_t rank, OperationId operation, absl::StatusCode code);
  void CheckOverflows();
  void Arm(Slot& slot);
  void Touch(Rank& rank, OperationId operation);
  void Copy(uint32_t rank, OperationId operation);
  void Read(Rank& rank, OperationId operation);
  bool rank_moves() const { return executor_ == Executor::kClient; }
  void CheckPulled(const Site& site);
  void Claim(uint32_t rank, uint32_t index);
  void Perform();
  void FinishMove(bool good);
  void Replace();
  void Remap(uint32_t rank);

  void Do(const LinkSubmission& e) { SlotOf(e.submission).linked = e.operation; }
  void Do(const DecideRecord& e) { decided_[e.operation] = e.status; }
  void Do(const AnswerSubmission& e);
  void Do(const MoveRows& e);
  template <typename Other>
  void Do(const Other&) {}

  std::mt19937_64 random_;
  const Executor executor_;
  const Sabotage sabotage_;
  const uint64_t seed_;
  const uint32_t num_sites_;  // Of a rank; a lone one comes back before its last use is forgotten.
  const bool drops_;          // What is over a capacity.
  std::unique_ptr<Exchange> exchange_;
  uint64_t formation_ = 0;
  absl::Time now_ = absl::UnixEpoch();
  std::array<Rank, kNumRanks> ranks_;
  std::map<OperationId, absl::Status> decided_;
  std::map<OperationId, uint32_t> site_of_;
  std::map<OperationId, uint64_t> cycle_of_;
  std::map<OperationId, uint32_t> told_;      // Codes of publishes.
  std::map<OperationId, bool> over_;          // Operations that failed for too many rows: they had.
  uint32_t scan_ = 0;                         // The slot that the worker looks at next.
  std::array<std::string, kNumRanks> taken_;  // What this worker has claimed of each.
  std::optional<OperationId> moving_;
  uint64_t next_operation_ = 1;
  uint64_t num_good_ = 0;
  uint64_t num_bad_ = 0;
  uint64_t num_replaced_ = 0;
  uint64_t num_overflows_ = 0;
  std::string violation_;
};

}  // namespace epd::streams
