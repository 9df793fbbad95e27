#include "client/cuda/stream_group.h"

#include <pthread.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>

#include "client/cuda/device_kernels.h"
#include "client/cuda/upload.h"
#include "kernels/cuda/driver/device_shape.h"
#include "kernels/cuda/scratch.h"
#include "kernels/routing_plan.h"
#include "proto/epd/v1/operation_kind.h"

namespace epd::client {
namespace {

// How often the thread looks whether it is still needed.
constexpr std::chrono::milliseconds kLook{100};
// For so long a worker or epd may end the uses of a group that is over: they say more about the cause.
constexpr std::chrono::milliseconds kAnswerDelay{200};
// How often it ends uses that nobody else answers.
constexpr std::chrono::milliseconds kGuardPeriod{1};
// XLA keeps an executable until its executions have ended; a site's slots are taken back this long after.
constexpr std::chrono::seconds kQuiet{1};
// For mapping the staging of a group that is READY.
constexpr std::chrono::seconds kMapDeadline{60};
// CUDA_ERROR_STREAM_CAPTURE_*: other streams may work. After any other error nothing does.
bool IsCapturing(cuda::Result code) { return code >= 900 && code <= 908; }

}  // namespace

HeldSite::~HeldSite() { group_->Retire(site_, scratch_); }

StreamGroup::StreamGroup(const StreamGroupArgs& args)
    : args_(args), driver_(*args.driver), regions_(*args.driver, args.device, args.rank) {}

StreamGroup::~StreamGroup() {
  if (!retained_) return;
  // The thread has ended, or never began: the device does nothing for this group any more.
  driver_.context_set_current(context_);
  if (scratch_ != 0) driver_.memory_free(scratch_);
  regions_.Unmap();
  kernels_.reset();
  slots_.reset();
  driver_.primary_context_release(args_.device);
}

Status StreamGroup::Create(const StreamGroupArgs& args, Clock::time_point deadline,
                           std::shared_ptr<StreamGroup>* out) {
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

  // Signals are for the program's own threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  // Detached: it ends by itself once the group is closed and its sites are gone, or with the process.
  std::thread([made] { made->Run(); }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);

  MutexLock lock(made->mutex_);
  if (status = made->AwaitOpen(deadline); !status.ok()) {
    made->closed_ = true;
    return status;
  }
  *out = std::move(made);
  return {};
}

Status StreamGroup::SetUp(const Formation& formation) {
  if (!driver_.has_stream_memory_operations()) {
    return MakeStatus(Code::kFailedPrecondition,
                      "the driver has no stream memory operations, with which calls wait on a "
                      "device; epctl doctor says more");
  }
  cuda::Result code = driver_.primary_context_retain(&context_, args_.device);
  if (code != cuda::kSuccess) return Refused(driver_, "cuDevicePrimaryCtxRetain", code);
  retained_ = true;
  code = driver_.context_set_current(context_);
  if (code != cuda::kSuccess) return Refused(driver_, "cuCtxSetCurrent", code);
  code = cuda::ReadDeviceShape(driver_, args_.device, &shape_);
  if (code != cuda::kSuccess) return Refused(driver_, "cuDeviceGetAttribute", code);
  const std::string bad = cuda::ReadBulkSetting(std::getenv(cuda::kBulkSetting), &shape_);
  if (!bad.empty()) return {Code::kInvalidArgument, bad};
  if (Status s = LoadKernels(driver_, args_.image, args_.device, &kernels_); !s.ok()) return s;
  if (Status s = RegisteredSlots::Create(driver_, args_.slots, &slots_); !s.ok()) return s;
  return MakeScratch(formation);
}

Status StreamGroup::MakeScratch(const Formation& formation) {
  const uint32_t top_k = formation.spec.top_k == 0 ? uint32_t{kMaxTopK} : formation.spec.top_k;
  const RoutingSpec largest = formation.Routing(top_k, 1);
  cuda::ScratchCursor measure(nullptr);
  cuda::TakePlanScratch(largest, measure);
  measure.Take<cuda::ReportWord>(1);
  measure.Take<int32_t>(int64_t{formation.spec.num_ranks} * formation.spec.num_experts);
  scratch_bytes_ = measure.used();
  uint64_t bytes = scratch_bytes_ * kMaxPrepares;
  if (formation.spec.executor == Executor::kClient) {
    num_locals_ = NumLocalExperts(largest, static_cast<int32_t>(args_.rank));
    cuda::ScratchCursor tables(nullptr);
    TakeStreamRegionTables(formation.spec.num_ranks, tables);
    tables_bytes_ = tables.used();
    cuda::ScratchCursor move(nullptr);
    TakeMoveScratch(largest, num_locals_, move);
    move_bytes_ = move.used();
    bytes += tables_bytes_ + move_bytes_ * kMaxMoves;
  }
  const uint64_t words_at = bytes;
  bytes += sizeof(cuda::UseWords) * shm::kSlotsPerSession;
  const uint64_t owners_at = bytes;
  bytes += formation.expert_owner.size() * sizeof(int32_t);
  if (Status s = AllocateScratch(bytes); !s.ok()) return s;
  words_ = scratch_ + words_at;
  if (formation.expert_owner.empty()) return {};
  owners_ = scratch_ + owners_at;
  return Upload(driver_, formation.expert_owner.data(),
                formation.expert_owner.size() * sizeof(int32_t), owners_);
}

Status StreamGroup::AllocateScratch(uint64_t bytes) {
  const cuda::Result code = driver_.memory_allocate(&scratch_, bytes);
  if (code != cuda::kSuccess) {
    scratch_ = 0;
    return MakeStatus(Code::kResourceExhausted, "no %llu bytes of device memory for routing: %s",
                      static_cast<unsigned long long>(bytes),
                      cuda::Describe(driver_, "cuMemAlloc", code).c_str());
  }
  MutexLock lock(mutex_);
  for (int i = kMaxPrepares - 1; i >= 0; --i) free_scratch_.push_back(i);
  for (int i = kMaxMoves - 1; i >= 0 && move_bytes_ != 0; --i) free_moves_.push_back(i);
  return {};
}

RoutingSpec StreamGroup::Routing(const StreamCall& call) const {
  RoutingSpec spec = formation_->Routing(call.top_k, call.alignment);
  spec.expert_owner = owners_ == 0 ? nullptr : reinterpret_cast<const int32_t*>(owners_);
  return spec;
}

Status StreamGroup::AddSite(const StreamCall& call, std::unique_ptr<HeldSite>* out) {
  std::unique_ptr<StreamSite> site;
  if (Status s = StreamSite::Create(slots_, call, &site); !s.ok()) return InPlace(std::move(s));
  MutexLock lock(mutex_);
  int scratch = -1;
  if (call.kind == shm::Kind::kPrepare || move_bytes_ != 0) {
    std::vector<int>& free = FreeScratchOf(call);
    if (free.empty()) {
      return InPlace(MakeStatus(Code::kResourceExhausted,
                                "%d prepares or %d other calls of this rank are in programs of "
                                "this process, the most there may be",
                                kMaxPrepares, kMaxMoves));
    }
    scratch = free.back();
    free.pop_back();
  }
  if (adopted_) site->Enter(*formation_);
  *out = std::make_unique<HeldSite>(shared_from_this(), site.get(), scratch);
  sites_.push_back({.site = std::move(site)});
  return {};
}

Status StreamGroup::InPlace(Status status) const {
  return AtPlace(std::move(status), {.group = name(), .rank = rank(), .phase = "stream"});
}

Status StreamGroup::Put(const HeldSite& held, const StreamBuffers& buffers, cuda::Stream stream) {
  return InPlace(PutUse(held, buffers, stream));
}

Status StreamGroup::PutUse(const HeldSite& held, const StreamBuffers& buffers,
                           cuda::Stream stream) {
  const StreamCall& call = held.site_->call();
  if (Status s = CheckBuffers(call, buffers); !s.ok()) return s;
  if (Status s = Check(); !s.ok()) return s;
  if (Status s = args_.group->AwaitReady(); !s.ok()) return s;
  MutexLock lock(mutex_);
  if (Status s = AwaitOpen(Clock::now() + kMapDeadline); !s.ok()) return s;
  const RoutingSpec spec = Routing(call);
  StreamSite::Surroundings around{driver_, *kernels_, shape_, spec, {}, {}};
  if (MovesOwnRows(call, formation_->spec)) {
    around.own = OwnPlaces(held, spec);
  } else {
    around.places = WorkerPlaces(held, spec);
  }
  driver_.context_set_current(context_);
  return held.site_->Put(around, buffers, stream);
}

// The group is READY: its thread has only to notice that and to map the staging.
Status StreamGroup::AwaitOpen(Clock::time_point deadline) {
  while (!open_ && over_.ok() && problem_.ok()) {
    if (changed_.WaitUntil(mutex_, deadline)) continue;
    return {Code::kDeadlineExceeded, "the group's staging was not mapped in time"};
  }
  return over_.ok() ? problem_ : over_;
}

StreamPlaces StreamGroup::WorkerPlaces(const HeldSite& held, const RoutingSpec& spec) const {
  StreamPlaces places;
  places.region = region_;
  places.words = WordsOf(held);
  if (held.site_->call().kind == shm::Kind::kPrepare) {
    cuda::ScratchCursor cursor(
        reinterpret_cast<void*>(scratch_ + static_cast<uint64_t>(held.scratch_) * scratch_bytes_));
    places.scratch = cuda::TakePlanScratch(spec, cursor);
    places.report = cursor.Take<cuda::ReportWord>(1);
    places.counts = cursor.Take<int32_t>(int64_t{spec.num_ranks} * spec.num_experts);
  }
  return places;
}

RankPlaces StreamGroup::OwnPlaces(const HeldSite& held, const RoutingSpec& spec) const {
  const uint64_t tables = scratch_ + scratch_bytes_ * kMaxPrepares;
  cuda::ScratchCursor at_tables(reinterpret_cast<void*>(tables));
  cuda::ScratchCursor cursor(reinterpret_cast<void*>(
      tables + tables_bytes_ + static_cast<uint64_t>(held.scratch_) * move_bytes_));
  return {.region = region_,
          .tables = TakeStreamRegionTables(formation_->spec.num_ranks, at_tables),
          .scratch = TakeMoveScratch(spec, num_locals_, cursor),
          .max_slots = formation_->spec.recv_capacity_per_rank,
          .num_locals = num_locals_,
          .words = WordsOf(held),
          .num_slots = held.site_->num_slots()};
}

std::vector<int>& StreamGroup::FreeScratchOf(const StreamCall& call) {
  return call.kind == shm::Kind::kPrepare ? free_scratch_ : free_moves_;
}

void StreamGroup::Note(Status failure) {
  if (failure_.ok()) failure_ = std::move(failure);
}

Status StreamGroup::Check() {
  MutexLock lock(mutex_);
  for (const Owned& owned : sites_) {
    Status failed = owned.site->TakeFailure();
    if (!failed.ok()) Note(std::move(failed));
  }
  Status first = std::move(failure_);
  failure_ = {};
  return InPlace(std::move(first));
}

void StreamGroup::Retire(StreamSite* site, int scratch) {
  MutexLock lock(mutex_);
  Status failed = site->TakeFailure();
  if (!failed.ok()) Note(std::move(failed));
  for (Owned& owned : sites_) {
    if (owned.site.get() != site) continue;
    owned.retired = true;
    owned.quiet_since = Clock::now();
  }
  if (scratch >= 0) FreeScratchOf(site->call()).push_back(scratch);
  changed_.NotifyAll();
}

void StreamGroup::Close() {
  MutexLock lock(mutex_);
  closed_ = true;
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
  const Clock::time_point now = Clock::now();
  std::erase_if(sites_, [&](Owned& owned) {
    if (!owned.retired) return false;
    if (owned.site->open()) owned.quiet_since = now;
    return now - owned.quiet_since >= kQuiet;
  });
}

void StreamGroup::Run() {
  pthread_setname_np(pthread_self(), "epd-streams");
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
      while (!Finished() && !args_.group->AwaitFormationEnd(last, Clock::now() + kLook)) {
        ReleaseRetired();
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
  if (mapped.ok())
    mapped = regions_.WriteTables(formation, scratch_ + scratch_bytes_ * kMaxPrepares);
  MutexLock lock(mutex_);
  problem_ = mapped;
  if (mapped.ok()) {
    auto numbers = std::make_shared<Formation>(formation);
    numbers->arenas.clear();
    formation_ = std::move(numbers);
    region_ = regions_.own(formation);
    adopted_ = true;
    open_ = true;
    for (Owned& owned : sites_) owned.site->Enter(*formation_);
  } else {
    Note(mapped);
  }
  changed_.NotifyAll();
}

// The formation is over, and nothing of it may be read or written when epd hears of that. Every use
// ends, answered ABORTED; if nobody is left to answer, this thread does.
void StreamGroup::Drain() {
  {
    MutexLock lock(mutex_);
    open_ = false;
  }
  std::atomic<bool> idle = false;
  std::thread waiter([&] {
    driver_.context_set_current(context_);
    while (IsCapturing(driver_.context_synchronize())) std::this_thread::sleep_for(kGuardPeriod);
    idle = true;
  });
  while (!idle) {
    std::this_thread::sleep_for(kGuardPeriod);
    const Status lost = args_.lost();
    if (lost.ok()) continue;
    MutexLock lock(mutex_);
    for (Owned& owned : sites_) {
      if (owned.site->EndOpen(Code::kUnavailable)) Note(lost);
    }
  }
  waiter.join();
  regions_.Unmap();
}

void StreamGroup::Guard(const Status& cause) {
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
      for (Owned& owned : sites_) {
        if (owned.site->EndOpen(cause.code)) Note(cause);
      }
    }
    ReleaseRetired();
    std::this_thread::sleep_for(kGuardPeriod);
  }
}

}  // namespace epd::client
