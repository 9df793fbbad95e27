// Ranks whose GPUs' streams call: sites that arm slots with constants, in one order, for ever; workers that go through the
// slots, may be replaced and may lose each other.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "proto/epd/v1/slot_word.h"
#include "tests/unit/daemon/worker/world/make_request.h"
#include "tests/unit/daemon/worker/world/world.h"

namespace epd::world {

struct StreamOptions {
  std::vector<int> worker_of = {0, 0};  // [num_ranks]
  Executor executor = Executor::kWorker;
  bool on_device = false;
  uint32_t num_sites = 1;
  // Slots are looked at in their order, and answered at the end; else each one as soon as it is armed.
  bool scans = true;
  bool drops = false;  // What is over a capacity.
  uint64_t seed = 0;   // What is true of a call follows from it:
  uint64_t overflows_every = 11;
  uint64_t lacks_plan_every = 17;
  int per_mille_replaced = 3;
  uint64_t cut_every = 0;  // Events; 0: never.
};

class Streams {
 public:
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
  struct Slot {
    uint64_t word = 0;
    uint32_t last_claim = 1;
    shm::SlotRequest request = {};
    OperationId answered_as;  // Of the last good answer.
  };
  struct Stream {
    std::vector<std::array<Slot, 3>> sites;  // By step.
    uint32_t site = 0;
    Pc pc = Pc::kTell;
    uint64_t cycle = 0;  // Calls so far.
    // The formation whose staging is mapped, and for which its requests speak.
    uint64_t mapped = 1;
    uint64_t spoke_for = 1;    // When its announce was claimed.
    uint64_t answered_in = 0;  // The formation in which its operation was admitted.
    PeerOperation named;       // On all workers; number 0: the announce failed.
    OperationId out;  // Whose rows stand in the output of the own stream region. Client executor:
    std::map<uint64_t, OperationId>
        stages;  // Whose rows the rank has staged, by the formation whose staging it had mapped.
    std::string taken;  // What the worker has claimed of it.
  };

  Streams(World& world, const StreamOptions& options);

  // `num_events` random ones, then a fair time without faults in which every stream must go on.
  void Run(int num_events);

  // ---- single events ----
  void Go(uint32_t rank);
  void ScanNext();
  void FinishMove(bool good);
  void Remap(uint32_t rank);
  void Replace();

  const std::vector<Stream>& streams() const { return streams_; }
  bool touches(uint32_t rank) const { return w_.touching.contains(rank); }
  // A client maps new staging between the uses of its streams: before that it waits for the end of what is in one.
  bool MayRemap(uint32_t rank) const {
    const Stream& stream = streams_[rank];
    const bool between = stream.pc == Pc::kTell || stream.pc == Pc::kArmAnnounce;
    return stream.mapped != group_->formation && between && !touches(rank);
  }
  bool IsArmed(uint32_t slot) const;
  uint32_t num_slots() const { return num_ranks() * slots_of_rank(); }
  uint32_t scan() const { return scan_; }
  uint64_t formation() const { return group_->formation; }
  uint64_t num_good() const { return num_good_; }
  uint64_t num_bad() const { return num_bad_; }
  uint64_t num_refused() const { return num_refused_; }
  uint64_t num_skipped() const { return num_skipped_; }
  uint64_t num_replaced() const { return num_replaced_; }
  uint64_t num_overflows() const { return num_overflows_; }

 private:
  uint32_t num_ranks() const { return static_cast<uint32_t>(streams_.size()); }
  uint32_t slots_of_rank() const { return options_.num_sites * 3; }
  bool rank_moves() const { return options_.executor == Executor::kClient; }
  Worker& WorkerOfRank(uint32_t rank) { return w_.worker(options_.worker_of[rank]); }
  bool Overflows(uint32_t rank) const;
  bool HasPlan(uint32_t rank) const;
  void WriteRequests(uint32_t rank);
  void Tell(uint32_t rank);
  void Arm(uint32_t rank, uint32_t step);
  void Claim(uint32_t rank, uint32_t index);
  void Touch(uint32_t rank, OperationId operation);
  void Copy(uint32_t rank, OperationId operation);
  void Read(uint32_t rank, OperationId operation);
  void Answered(Worker& worker, const AnswerSubmission& e);
  void Settle();
  void RandomEvent();
  void FairRound();

  World& w_;
  const StreamOptions options_;
  Group* group_ = nullptr;
  std::vector<Stream> streams_;
  uint32_t scan_ = 0;  // The slot that the worker looks at next.
  uint64_t num_good_ = 0;
  uint64_t num_bad_ = 0;
  uint64_t num_refused_ = 0;
  uint64_t num_skipped_ = 0;
  uint64_t num_replaced_ = 0;
  uint64_t num_overflows_ = 0;
};

}  // namespace epd::world
