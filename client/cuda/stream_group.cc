// Long because puts, formations and ends are of one lock.
#include "client/cuda/stream_group.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <optional>
#include <thread>
#include <utility>

#include "client/cuda/beside_captures.h"
#include "client/cuda/device_kernels.h"
#include "client/cuda/waited_use.h"
#include "kernels/cuda/driver/device_shape.h"
#include "kernels/cuda/driver/device_words.h"
#include "kernels/cuda/driver/sticky_errors.h"
#include "kernels/routing_plan.h"
#include "proto/epd/v1/operation_kind.h"
#include "proto/machine/thread.h"

namespace epd::client {
namespace {

// How often the thread looks whether it is still needed.
constexpr std::chrono::milliseconds kLook{100};
// ... and whether the streams have ended what they had, while a daemon stops.
constexpr std::chrono::milliseconds kStopLook{2};
// Replays of graphs come from nobody knows where. Those that come closer than this behind each other end, for so long.
constexpr std::chrono::milliseconds kReplayPause{200};
constexpr std::chrono::seconds kReplayLimit{2};
// For so long a worker or epd may end the uses of a group that is over: they say more about the cause.
constexpr std::chrono::milliseconds kAnswerDelay{200};
// How often it ends uses that nobody else answers.
constexpr std::chrono::milliseconds kGuardPeriod{1};
// For mapping the staging of a group that is READY.
constexpr std::chrono::seconds kMapDeadline{60};
// As a worker, or who speaks for one, refuses what would begin while a group ends.
bool IsRefusal(Code code) {
  return code == Code::kFailedPrecondition || code == Code::kUnavailable;
}

}  // namespace

HeldSite::~HeldSite() {
  if (site_ != nullptr) group_->Retire(site_, scratch_);
}

StreamGroup::StreamGroup(const StreamGroupArgs& args)
    : args_(args),
      driver_(*args.driver),
      regions_(*args.driver, args.device, args.rank),
      scratch_(*args.driver, args.rank) {}

StreamGroup::~StreamGroup() {
  if (!retained_) return;
  // The thread has ended, or never began: the device does nothing for this group any more.
  const BesideCaptures beside(driver_);
  driver_.context_set_current(context_);
  scratch_.Free();
  carried_plans_.reset();
  progress_.reset();
  if (probe_ != nullptr) driver_.event_destroy(probe_);
  regions_.Unmap();
  kernels_.reset();
  slots_.reset();
  driver_.primary_context_release(args_.device);
}

Status StreamGroup::Create(const StreamGroupArgs& args, Clock::time_point deadline,
                           std::shared_ptr<StreamGroup>* out) {
  std::unique_ptr<RankOnDevice> place;
  const Status fits = RankOnDevice::Take(
      {args.driver, args.device, args.group->name(), args.rank},
      "cuda:" + std::to_string(args.device) + " " + cuda::IdOf(*args.driver, args.device), &place);
  if (!fits.ok()) {
    return AtPlace(fits, {.group = args.group->name(), .rank = args.rank, .phase = "open"});
  }
  std::shared_ptr<StreamGroup> made(new StreamGroup(args));
  std::shared_ptr<const Formation> formation;
  if (!args.group->BeginStreams(0, deadline, &formation)) {
    Status cause;
    if (args.group->HasEnded(&cause)) return cause;
    return MakeStatus(Code::kDeadlineExceeded, "group=%s did not become READY in time",
                      args.group->name().c_str());
  }
  Status status = made->SetUp(*formation);
  formation.reset();
  args.group->EndStreams();
  if (!status.ok()) return status;

  // Detached: it ends once the group is closed and its sites are gone, or with the process. Signals are the program's.
  constexpr const char* kName = "epd-streams";
  if (const int error = StartDetached({kName, ThreadSignals::kNone}, [made] { made->Run(); });
      error != 0) {
    return MakeStatus(Code::kResourceExhausted, "group=%s rank=%u phase=open: %s",
                      args.group->name().c_str(), args.rank, WhyNoThread(kName, error).c_str());
  }

  MutexLock lock(made->mutex_);
  if (status = made->AwaitOpen(deadline); !status.ok()) {
    made->closed_ = true;
    return status;
  }
  made->place_ = std::move(place);
  *out = std::move(made);
  return {};
}

Status StreamGroup::SetUp(const Formation& formation) {
  const BesideCaptures beside(driver_);
  if (!driver_.has_stream_memory_operations()) {
    return MakeStatus(Code::kFailedPrecondition,
                      "the driver has no stream memory operations, with which calls wait on a "
                      "device; epctl doctor says more");
  }
  cuda::Result code = driver_.primary_context_retain(&context_, args_.device);
  if (code != cuda::kSuccess) {
    return {Code::kFailedPrecondition,
            "the device cannot be used: " + cuda::DescribeNoContext(driver_, args_.device, code)};
  }
  retained_ = true;
  code = driver_.context_set_current(context_);
  if (code != cuda::kSuccess) return Refused(driver_, "cuCtxSetCurrent", code);
  code = cuda::ReadDeviceShape(driver_, args_.device, &shape_);
  if (code != cuda::kSuccess) return Refused(driver_, "cuDeviceGetAttribute", code);
  const std::string bad = cuda::ReadBulkSetting(std::getenv(cuda::kBulkSetting), &shape_);
  if (!bad.empty()) return {Code::kInvalidArgument, bad};
  if (Status s = LoadKernels(driver_, args_.image, args_.device, &kernels_); !s.ok()) return s;
  if (Status s = RegisteredSlots::Create(driver_, args_.slots, &slots_); !s.ok()) return s;
  const uint32_t num_slots = slots_->pool().view().num_slots();
  if (Status s = StreamProgress::Make(driver_, num_slots, &progress_); !s.ok()) return s;
  code = driver_.event_create(&probe_, cuda::kEventDisableTiming);
  if (code != cuda::kSuccess) return Refused(driver_, "cuEventCreate", code);
  if (const PlanIds& carried = formation.carried_plans; carried.group_id != 0) {
    const RoutingSpec largest = formation.Routing(MaxTopKOf(formation), 1);
    const Status made = CarriedPlans::Make(driver_, carried, formation.plan_ids,
                                           RoutingPlanBytes(largest), &carried_plans_);
    if (!made.ok()) return made;
  }
  return scratch_.Make(formation, num_slots);
}

RoutingSpec StreamGroup::Routing(const StreamCall& call) const {
  RoutingSpec spec = formation_->Routing(call.top_k, call.alignment);
  spec.expert_owner = scratch_.owners();
  return spec;
}

Status StreamGroup::AddSite(const StreamCall& call, std::unique_ptr<HeldSite>* out) {
  std::unique_ptr<StreamSite> made;
  if (Status s = StreamSite::Create(slots_, *progress_, call, &made); !s.ok())
    return InPlace(std::move(s));
  auto held = std::make_unique<HeldSite>(shared_from_this());
  MutexLock lock(mutex_);
  sites_.MakeRoom();
  if (Status s = scratch_.Take(call, &held->scratch_); !s.ok()) return InPlace(std::move(s));
  held->site_ = made.get();
  sites_.Add(std::move(made));
  if (adopted_) held->site_->Enter(*formation_);
  if (quiet_) held->site_->Forget();
  *out = std::move(held);
  return {};
}

Status StreamGroup::InPlace(Status status) const {
  return AtPlace(std::move(status), {.group = name(), .rank = rank(), .phase = "stream"});
}

Status StreamGroup::Put(const HeldSite& held, const StreamBuffers& buffers, cuda::Stream stream) {
  return InPlace(PutUse(held, buffers, stream));
}

// One put that is under way, from AwaitTurn on.
class StreamGroup::Turn {
 public:
  Turn(StreamGroup& group, StreamSite& site, bool waits)
      : group_(group), site_(site), waits_(waits) {}
  // Whoever drains the group, or follows a stop, has noted the site's uses without this one.
  ~Turn() {
    MutexLock lock(group_.mutex_);
    std::erase_if(group_.puts_, [this](const UnderWay& put) { return put.site == &site_; });
    if (!group_.open_ || (group_.stops_ && !waits_)) site_.NotePuts();
    group_.changed_.NotifyAll();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  StreamGroup& group_;
  StreamSite& site_;
  const bool waits_;
};

Status StreamGroup::AwaitTurn(const StreamSite& site, cuda::Stream stream) {
  const auto holds_up = [&](const UnderWay& put) {
    return put.site == &site || put.stream == stream;
  };
  while (true) {
    if (Status s = AwaitOpen(Clock::now() + kMapDeadline); !s.ok()) return s;
    if (std::none_of(puts_.begin(), puts_.end(), holds_up)) break;
    changed_.WaitUntil(mutex_, Clock::now() + kLook);
  }
  puts_.push_back({&site, stream});
  return {};
}

StreamSite::Surroundings StreamGroup::SurroundingsOf(const HeldSite& held, bool captured) const {
  const StreamCall& call = held.site_->call();
  const RoutingSpec spec = Routing(call);
  StreamSite::Surroundings around{driver_, *kernels_, shape_, captured, spec, {}, {}};
  if (RanksMove(formation_->spec) && call.kind != shm::Kind::kPrepare) {
    around.own = scratch_.OwnPlaces(spec, held.scratch_, held.site_->number());
    around.own->region = region_;
    around.own->shape = StageShapeOf(*formation_);
    around.own->ended = reinterpret_cast<const uint32_t*>(slots_->AddressOfEnded());
    around.own->num_slots = held.site_->num_slots();
    around.own->found = held.site_->found();
  } else {
    around.places = scratch_.WorkerPlaces(call, spec, held.scratch_, held.site_->number());
    around.places.region = region_;
    around.places.told_counts = held.site_->told_counts();
  }
  return around;
}

Status StreamGroup::PutUse(const HeldSite& held, const StreamBuffers& buffers,
                           cuda::Stream stream) {
  StreamSite& site = *held.site_;
  if (Status s = CheckBuffers(site.call(), buffers); !s.ok()) return s;
  if (Status s = Check(); !s.ok()) return s;
  if (Status s = args_.group->AwaitReady(); !s.ok()) return s;
  driver_.context_set_current(context_);
  const bool captured = IsBeingCaptured(driver_, stream);
  if (carried_plans_ != nullptr && !captured) {
    if (Status s = TakeCarriedPlan(site.call(), buffers, stream); !s.ok()) return s;
  }
  bool waits = false;
  std::optional<Turn> turn;
  std::optional<StreamSite::Surroundings> around;
  {
    MutexLock lock(mutex_);
    if (Status s = AwaitTurn(site, stream); !s.ok()) return s;
    waits = stops_ && !captured;
    turn.emplace(*this, site, waits);
    around.emplace(SurroundingsOf(held, captured));
    site.SetWaited(waits);
    if (waits) site.ClearAnswers();
  }
  // Under no lock: where the stream's queue is full the driver holds this thread up for as long as the stream waits for others,
  // and what ends that may be this group's thread.
  Status put = site.Put(*around, buffers, stream);
  turn.reset();
  if (!put.ok() || !waits) return put;
  return FinishUse(site, stream);
}

Status StreamGroup::TakeCarriedPlan(const StreamCall& call, const StreamBuffers& buffers,
                                    cuda::Stream stream) {
  if (call.kind == shm::Kind::kPrepare) {
    carried_plans_->NoteMade(buffers.handle_mem);
    return {};
  }
  const std::shared_ptr<const Formation> last = formation();
  return carried_plans_->Rename(last->Routing(call.top_k, call.alignment), buffers.handle_mem,
                                stream);
}

// Nothing that needs its outputs is in the stream yet. So where it was refused, which all ranks hear, nobody has seen it.
Status StreamGroup::FinishUse(StreamSite& site, cuda::Stream stream) {
  if (Status s = AwaitUse(driver_, stream, site); !s.ok()) return s;
  const Status before = site.TakeFailure();  // Of this use, or of an earlier one.
  const Status announced = site.announced();
  if (announced.ok()) return before.ok() ? site.published() : before;
  const bool refused = IsRefusal(announced.code) && (before.ok() || IsRefusal(before.code));
  if (!refused || args_.group->stopping() == EPD_GROUP_STAYS)
    return before.ok() ? announced : before;
  const Clock::time_point deadline = Clock::now() + kMapDeadline;
  Status cause;
  while (!args_.group->HasEnded(&cause) && Clock::now() < deadline)
    std::this_thread::sleep_for(kGuardPeriod);
  return cause.resumable ? cause : announced;
}

// The group is READY: its thread has only to notice that and to map the staging.
Status StreamGroup::AwaitOpen(Clock::time_point deadline) {
  while (!open_ && over_.ok() && problem_.ok()) {
    if (changed_.WaitUntil(mutex_, deadline)) continue;
    return {Code::kDeadlineExceeded, "the group's staging was not mapped in time"};
  }
  return over_.ok() ? problem_ : over_;
}

void StreamGroup::Note(Status failure) {
  if (failure_.ok()) failure_ = std::move(failure);
}

Status StreamGroup::Check() {
  MutexLock lock(mutex_);
  if (Status failed = sites_.TakeFailure(); !failed.ok()) Note(std::move(failed));
  Status first = std::move(failure_);
  failure_ = {};
  return InPlace(std::move(first));
}

void StreamGroup::Retire(StreamSite* site, int scratch) {
  MutexLock lock(mutex_);
  Status failed = site->TakeFailure();
  if (!failed.ok()) Note(std::move(failed));
  sites_.Retire(*site, Clock::now());
  scratch_.GiveBack(site->call(), scratch);
  changed_.NotifyAll();
}

void StreamGroup::Close() {
  std::unique_ptr<RankOnDevice> place;  // Given back under no lock.
  MutexLock lock(mutex_);
  place = std::move(place_);
  closed_ = true;
  Status cause;
  if (over_.ok() && args_.group->HasEnded(&cause) && cause.resumable) over_ = cause;
  if (over_.ok()) {
    over_ = MakeStatus(Code::kFailedPrecondition, "group=%s was left; join it again",
                       args_.group->name().c_str());
  }
  changed_.NotifyAll();
}

bool StreamGroup::Finished() {
  MutexLock lock(mutex_);
  return closed_ && sites_.empty();
}

void StreamGroup::ReleaseRetired() {
  MutexLock lock(mutex_);
  sites_.ReleaseRetired(Clock::now());
}

void StreamGroup::Run() {
  const BesideCaptures beside(driver_);
  driver_.context_set_current(context_);
  uint64_t last = 0;
  while (!Finished()) {
    ReleaseRetired();
    std::shared_ptr<const Formation> formation;
    Status cause;
    if (args_.group->BeginStreams(last, Clock::now() + kLook, &formation)) {
      last = formation->formation;
      Adopt(*formation);
      formation.reset();
      bool stops = false;
      while (!Finished() &&
             !args_.group->AwaitFormationEnd(last, Clock::now() + (stops ? kStopLook : kLook))) {
        ReleaseRetired();
        stops = args_.group->stopping() == EPD_GROUP_STOPS;
        if (stops) FollowStop();
      }
      if (!args_.group->HasEnded(&cause)) Drain();
      args_.group->EndStreams();
    } else if (args_.group->HasEnded(&cause)) {
      Guard(cause);
    }
  }
}

void StreamGroup::Adopt(const Formation& formation) {
  Status mapped = regions_.Map(formation);
  if (mapped.ok()) mapped = regions_.WriteTables(formation, scratch_.tables());
  MutexLock lock(mutex_);
  problem_ = mapped;
  if (mapped.ok()) {
    auto numbers = std::make_shared<Formation>(formation);
    numbers->arenas.clear();
    formation_ = std::move(numbers);
    region_ = regions_.own(formation);
    adopted_ = true;
    open_ = true;
    sites_.Enter(*formation_);
  } else {
    Note(mapped);
  }
  changed_.NotifyAll();
}

bool StreamGroup::IsContextGone() const { return cuda::IsSticky(driver_.event_query(probe_)); }

void StreamGroup::UnmapStaging() {
  const BesideCaptures beside(driver_);
  driver_.context_set_current(context_);
  const auto may_touch = [this] {
    MutexLock lock(mutex_);
    return !puts_.empty() || !sites_.HavePutsEnded() || sites_.AreReplaying();
  };
  while (may_touch() && !IsContextGone()) std::this_thread::sleep_for(kGuardPeriod);
  regions_.Unmap();
}

// What streams have in them cannot be refused and made again, so it ends first: the worker goes on for as long as any slot
// is armed by a stream. If it does not end, the group's end ends what it waits for.
void StreamGroup::FollowStop() {
  const Clock::time_point now = Clock::now();
  {
    MutexLock lock(mutex_);
    if (!std::exchange(stops_, true)) {
      sites_.NotePuts();
      stops_since_ = now;
      last_replay_ = now;
    }
    if (quiet_) return;
    if (sites_.AreReplaying()) last_replay_ = now;
    // While the driver holds a put up it may hold up whoever asks it something.
    if (!puts_.empty()) return;
  }
  const bool gone = IsContextGone();
  MutexLock lock(mutex_);
  const bool no_replays = !sites_.HaveCaptured() || now - last_replay_ >= kReplayPause ||
                          now - stops_since_ >= kReplayLimit;
  if (!(puts_.empty() && sites_.HavePutsEnded() && no_replays) && !gone) return;
  quiet_ = true;
  sites_.Forget();
}

// The formation is over, and nothing of it may be read or written when epd hears of that. Every use
// ends, answered ABORTED; if nobody is left to answer, this thread does. Unmapping may wait for whatever streams have in them.
void StreamGroup::Drain() {
  {
    MutexLock lock(mutex_);
    open_ = false;
    sites_.NotePuts();
    sites_.Leave();
  }
  std::atomic<bool> unmapped = false;
  const auto unmap = [&] {
    UnmapStaging();
    unmapped = true;
  };
  Thread unmapping;
  // Without a thread nobody ends the uses meanwhile, should epd's session be lost.
  if (StartThread({"epd-unmap", ThreadSignals::kNone}, unmap, &unmapping) != 0) return unmap();
  while (!unmapped) {
    std::this_thread::sleep_for(kGuardPeriod);
    const Status lost = args_.lost();
    if (lost.ok()) continue;
    MutexLock lock(mutex_);
    if (sites_.EndOpen(Code::kUnavailable)) Note(lost);
  }
  unmapping.join();
}

void StreamGroup::Guard(const Status& cause) {
  Status failure = cause;
  if (cause.resumable) {
    failure.message +=
        "; a graph that was captured before is of the group that has ended: capture it again (in "
        "JAX EPD_COMMAND_BUFFERS=off "
        "keeps calls out of graphs), and begin again from one step on all ranks";
  }
  {
    MutexLock lock(mutex_);
    if (over_.ok()) over_ = cause;
    changed_.NotifyAll();
    // Who else may answer says why, and more than this thread can.
    changed_.WaitUntil(mutex_, Clock::now() + kAnswerDelay);
  }
  while (!Finished()) {
    {
      MutexLock lock(mutex_);
      if (sites_.EndOpen(cause.code)) Note(failure);
    }
    ReleaseRetired();
    std::this_thread::sleep_for(kGuardPeriod);
  }
}

}  // namespace epd::client
