// One rank of a group on a device: its staging, its call sites, and the thread that looks after them.
//
// Calls in streams begin and end unseen, so what a CPU's call does around its waits a thread does here:
//
//   READY       maps the staging at its fixed address (with the client executor that of all ranks), then
//               lets the sites speak for the formation
//   re-formed   waits until what was put has ended, and no replay of a graph is in a use (every use is answered ABORTED,
//               nothing copies), unmaps the staging, tells epd that the group is drained, and waits for READY. A replay may
//               begin meanwhile: what it announces is refused, and its kernels look at the answer before they touch staging
//   stops       a node's daemon stops in order: what was put ends, and replays that come one behind the other; a call that is
//               put from now on is waited for, so that it can be refused and put again, in the group that goes on for this one
//   over        nobody answers any more: ends whatever streams still arm, until the last site is gone
//
// Sites may be dropped before, after or without Close. The group lives until both have happened.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/c/group.h"
#include "client/c/mutex.h"
#include "client/c/slot_pool.h"
#include "client/cuda/carried_plans.h"
#include "client/cuda/hardware_queues.h"
#include "client/cuda/owned_sites.h"
#include "client/cuda/registered_slots.h"
#include "client/cuda/stream_progress.h"
#include "client/cuda/stream_region_maps.h"
#include "client/cuda/stream_scratch.h"
#include "kernels/cuda/driver/kernel_module.h"

namespace epd::client {

struct StreamGroupArgs {
  std::shared_ptr<SlotPool> slots;  // Of the session; keeps its segment mapped.
  std::function<Status()> lost;     // Why the session has ended; OK while it lives.
  std::shared_ptr<Group> group;
  uint32_t rank = 0;
  int device = 0;                             // Ordinal in this process.
  const cuda::DriverTable* driver = nullptr;  // Initialised; outlives everything.
  const void* image = nullptr;                // KernelImage().data unless a test says otherwise.
};

class StreamGroup;

// A site of a group; dropping it gives it back, whatever its streams still do. That takes the group's lock, so none may be dropped under it.
class HeldSite {
 public:
  explicit HeldSite(std::shared_ptr<StreamGroup> group) : group_(std::move(group)) {}
  ~HeldSite();
  HeldSite(const HeldSite&) = delete;
  HeldSite& operator=(const HeldSite&) = delete;

 private:
  friend class StreamGroup;
  const std::shared_ptr<StreamGroup> group_;
  StreamSite* site_ = nullptr;  // The group's, which lets go of it once this is gone.
  int scratch_ = -1;            // Of a prepare, or of a move of this rank's; -1: none.
};

// Thread-safe.
class StreamGroup : public std::enable_shared_from_this<StreamGroup> {
 public:
  // Maps the staging and starts the thread. Allocates device memory: nothing may wait in a stream.
  //   FAILED_PRECONDITION  the group's staging is not on this device; or the driver cannot map or
  //                        register it, or lacks stream memory operations; or another rank of this process is on the
  //                        device, which has too few hardware queues for both (hardware_queues.h)
  //   DEADLINE_EXCEEDED    the group was not READY in time
  static Status Create(const StreamGroupArgs& args, Clock::time_point deadline,
                       std::shared_ptr<StreamGroup>* group);
  ~StreamGroup();

  // Takes slots and writes their requests. Allocates nothing on the device.
  //   RESOURCE_EXHAUSTED  slots, or prepares
  Status AddSite(const StreamCall& call, std::unique_ptr<HeldSite>* site);

  // Puts one use of the site into the stream. What is captured is constants only, so it may be replayed. Waits for no device and no rank, but while the group is being formed anew for READY:
  // nothing but replays is in the streams while staging is mapped. While a node's daemon stops in order it waits for the call's
  // end; a call that the group has refused, or that came when it had ended, has happened on no rank, and the status is
  // `resumable`: it may be put again once the group was joined again. Of a plan that was carried over from there see
  // carried_plans.h.
  //   what Check says      an earlier use has failed; nothing was put
  //   what AwaitReady says (client/c/group.h), or why the staging could not be mapped
  //   INVALID_ARGUMENT     a buffer is missing, or not aligned to 16 bytes
  Status Put(const HeldSite& site, const StreamBuffers& buffers, cuda::Stream stream);

  uint32_t rank() const { return args_.rank; }
  const std::string& name() const { return args_.group->name(); }
  // The last one whose staging was mapped, without its arenas.
  std::shared_ptr<const Formation> formation() {
    MutexLock lock(mutex_);
    return formation_;
  }

  // The first use that has failed since the last time somebody asked; its outputs are zeros, on every rank.
  Status Check();

  // The process leaves the group. Sites may live on.
  void Close();

 private:
  explicit StreamGroup(const StreamGroupArgs& args);
  // With the group and the rank before its text.
  Status InPlace(Status status) const;
  class Turn;
  // A put whose calls of the driver are being made, which may take as long as its stream waits for others.
  struct UnderWay {
    const StreamSite* site;
    cuda::Stream stream;
  };
  Status PutUse(const HeldSite& site, const StreamBuffers& buffers, cuda::Stream stream);
  // Waits until the group is open, and nobody puts the site or into the stream; this put is then under way.
  Status AwaitTurn(const StreamSite& site, cuda::Stream stream) EPD_REQUIRES(mutex_);
  StreamSite::Surroundings SurroundingsOf(const HeldSite& site, bool captured) const
      EPD_REQUIRES(mutex_);
  Status SetUp(const Formation& formation);
  void Run();
  bool Finished();
  void Adopt(const Formation& formation);
  void Drain();
  // Until all is over that may touch the staging, which is then unmapped.
  void UnmapStaging();
  // No stream of the context runs anything any more.
  bool IsContextGone() const;
  void FollowStop();
  // After a use that was put while a node's daemon stops in order.
  Status FinishUse(StreamSite& site, cuda::Stream stream);
  Status TakeCarriedPlan(const StreamCall& call, const StreamBuffers& buffers, cuda::Stream stream);
  void Guard(const Status& cause);
  void ReleaseRetired();
  void Note(Status failure) EPD_REQUIRES(mutex_);
  Status AwaitOpen(Clock::time_point deadline) EPD_REQUIRES(mutex_);
  void Retire(StreamSite* site, int scratch);
  RoutingSpec Routing(const StreamCall& call) const EPD_REQUIRES(mutex_);
  friend class HeldSite;

  const StreamGroupArgs args_;
  const cuda::DriverTable& driver_;
  cuda::Context context_ = nullptr;
  bool retained_ = false;
  cuda::DeviceShape shape_;
  std::shared_ptr<const cuda::KernelModule> kernels_;
  std::shared_ptr<RegisteredSlots> slots_;
  StreamRegionMaps regions_;
  StreamScratch scratch_;
  std::unique_ptr<CarriedPlans> carried_plans_;  // Null: there are none.
  std::unique_ptr<StreamProgress> progress_;
  cuda::Event probe_ =
      nullptr;  // Never recorded: all that the driver says of it is of the context.

  Mutex mutex_;
  CondVar changed_;
  bool closed_ EPD_GUARDED_BY(mutex_) = false;
  bool adopted_ EPD_GUARDED_BY(mutex_) = false;
  bool open_ EPD_GUARDED_BY(mutex_) = false;   // Adopted, and not being drained.
  bool stops_ EPD_GUARDED_BY(mutex_) = false;  // A node's daemon does, in order.
  Clock::time_point stops_since_ EPD_GUARDED_BY(mutex_) = {};
  Clock::time_point last_replay_ EPD_GUARDED_BY(mutex_) = {};  // Seen since then.
  bool quiet_ EPD_GUARDED_BY(mutex_) =
      false;  // And the worker looks at slots only where it is told to.
  Status problem_ EPD_GUARDED_BY(mutex_);  // Of the last mapping.
  Status over_ EPD_GUARDED_BY(mutex_);     // Why nothing can be put any more.
  Status failure_ EPD_GUARDED_BY(mutex_);
  std::shared_ptr<const Formation> formation_ EPD_GUARDED_BY(mutex_);  // Last adopted.
  uint8_t* region_ EPD_GUARDED_BY(mutex_) = nullptr;                   // The own one.
  OwnedSites sites_ EPD_GUARDED_BY(mutex_);
  std::vector<UnderWay> puts_ EPD_GUARDED_BY(mutex_);
  std::unique_ptr<RankOnDevice> place_ EPD_GUARDED_BY(mutex_);  // Until it is closed.
};

}  // namespace epd::client
