// A call site in GPU streams: three op slots, one for each step, and what a stream does with them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "client/c/group.h"
#include "client/c/status.h"
#include "client/cuda/rank_moves.h"
#include "client/cuda/registered_slots.h"
#include "client/cuda/stream_call.h"
#include "client/cuda/stream_progress.h"
#include "kernels/cuda/driver/driver_table.h"
#include "kernels/cuda/driver/kernel_module.h"

namespace epd::client {

// The slots' requests are written here, by the CPU, once for each formation. What Put then queues is the same
// at every call but for a number behind it, which a captured graph has not; it replays the rest.
class StreamSite {
 public:
  // RESOURCE_EXHAUSTED: the session has no three slots left. `progress` outlives the site.
  static Status Create(std::shared_ptr<RegisteredSlots> slots, const StreamProgress& progress,
                       StreamCall call, std::unique_ptr<StreamSite>* site);
  // Gives the slots back. Nothing may arm them any more.
  ~StreamSite();
  StreamSite(const StreamSite&) = delete;
  StreamSite& operator=(const StreamSite&) = delete;

  const StreamCall& call() const { return call_; }

  // From now on the site's calls belong to `formation`, whose staging is mapped.
  void Enter(const Formation& formation);
  // From now on what a replay announces is refused, whoever reads it. One that the worker may have let in before can be seen by
  // replaying(), before the worker has seen it.
  void Leave();
  // The worker need not look at these slots any more, unless it is told to (Ring).
  void Forget();
  // Has the worker look at what is armed. False: nothing is open.
  bool Ring() const;

  // What a call needs beside the site, from its group.
  struct Surroundings {
    const cuda::DriverTable& driver;
    const cuda::KernelModule& kernels;
    const cuda::DeviceShape& device;
    bool captured;                  // The call may be replayed, and does not run now.
    RoutingSpec spec;               // As the device reads it.
    StreamPlaces places;            // Where the worker moves the rows; else
    std::optional<RankPlaces> own;  // where this rank does.
  };
  // Queues one call: one at a time. Allocates nothing; waits where the driver does, for room in the stream's queue.
  //   INTERNAL  a driver's call failed; the text names it
  Status Put(const Surroundings& around, const StreamBuffers& buffers, cuda::Stream stream);

  // HavePutsEnded is about the calls that were put, and not captured, before the last NotePuts.
  void NotePuts() { noted_ = num_put_; }
  bool HavePutsEnded() const { return static_cast<int32_t>(progress_.ended() - noted_) >= 0; }
  // Whether it was ever captured; and whether a stream is in a replay of it.
  bool captured() const { return captured_; }
  bool replaying() const { return progress_.replaying(); }

  // The first call that failed since the last TakeFailure; OK: none.
  Status TakeFailure();
  // Ends what is open, since nobody else will. True: a use has failed by that.
  bool EndOpen(Code code);
  bool open() const;
  // How the last use went, of which nothing is open any more: the announce, and then the whole. Between ClearAnswers before that use
  // and these there is no other.
  void ClearAnswers();
  // Whether somebody waits for the last use, and sees itself how it went. Written and read under the group's mutex.
  void SetWaited(bool waited) { waited_ = waited; }
  bool waited() const { return waited_; }
  Status announced() const { return AnswerOf(0); }
  Status published() const { return AnswerOf(1); }

  // As the device addresses it.
  const int64_t* num_slots() const;
  // Where its kernels say what they have found in peers' stages.
  uint64_t* found() const;
  // Where a prepare of a group whose ranks move its rows tells its counts.
  uint16_t* told_counts() const;
  // Less than the session has op slots; of no other site of it.
  int number() const { return indices_[0]; }

 private:
  static constexpr int kNumSteps = 3;

  StreamSite(std::shared_ptr<RegisteredSlots> slots, StreamCall call)
      : slots_(std::move(slots)), call_(std::move(call)) {}
  void Prepare(const StreamProgress& progress);
  shm::Slot& SlotOf(int step) const { return slots_->pool()[indices_[static_cast<size_t>(step)]]; }
  cuda::DevicePointer WordOf(int step) const {
    return slots_->AddressOfWord(indices_[static_cast<size_t>(step)]);
  }
  const uint32_t* Done(int step) const;
  Status AnswerOf(int step) const;
  const PlanIds* plan_ids() const;
  Status TakeBadStage();
  void WriteRequest(int step, const Formation& formation);
  cuda::DevicePointer RequestOf(int step) const;
  class Queue;
  void PutForWorker(const Surroundings& around, const StreamBuffers& buffers, Queue& queue) const;
  void PutOwn(const Surroundings& around, const StreamBuffers& buffers, Queue& queue) const;
  void PutAnnounce(const Surroundings& around, const StreamBuffers& buffers, Queue& queue) const;
  // Arms, waits and takes the answer to the device.
  void AskAndTake(int step, const Surroundings& around, Queue& queue) const;

  const std::shared_ptr<RegisteredSlots> slots_;
  const StreamCall call_;
  std::vector<int> indices_;  // [kNumSteps]
  bool entered_ = false;
  bool waited_ = false;
  SiteProgress progress_;  // Prepare sets it.
  // Written by whoever puts, one at a time, and read under the group's mutex.
  std::atomic<bool> captured_ = false;
  std::atomic<uint32_t> num_put_ = 0;  // Not captured; wraps.
  uint32_t noted_ = 0;
  // Constants: the arm of a step, and behind those of announce and publish the wait.
  std::vector<cuda::BatchedOperation> batches_[kNumSteps];
};

}  // namespace epd::client
