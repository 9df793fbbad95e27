#include "daemon/worker/shell/exec_loop.h"

#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/core/duration_text.h"
#include "daemon/worker/engine/cause_text.h"
#include "daemon/worker/shell/control_codec.h"
#include "daemon/worker/shell/spin_policy.h"
#include "daemon/worker/shell/thread_slice.h"
#include "proto/failpoint/failpoint.h"

namespace epd {
namespace {

// epoll's data of descriptors that are no session's.
constexpr uint64_t kControl = UINT64_MAX;
constexpr uint64_t kIdMaker = UINT64_MAX - 1;
constexpr uint64_t kWire = UINT64_MAX - 2;
constexpr uint64_t kPages = UINT64_MAX - 3;
// Control messages and deadlines are looked at this often under load, too.
constexpr absl::Duration kControlPeriod = absl::Milliseconds(1);
constexpr int kMaxSleepMs = 60'000;
// From the signal of its end until its socket is closed.
constexpr absl::Duration kEpdEnds = absl::Milliseconds(100);
constexpr int kMaxEvents = 64;
// What is shorter is a busy machine's.
constexpr absl::Duration kStandstillSaid = absl::Seconds(1);

int NumCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

// Ranks' parts in operations. One costs epd, its worker and a collector up to 25 us of CPU time (tests/bench, watched.py): so a
// worker's traces cost less than 2 % of the machine.
uint64_t TracedPerSecond(int num_cpus) {
  constexpr uint64_t kOfACore = 400;
  return kOfACore * static_cast<uint64_t>(num_cpus);
}

// Ids of one worker never meet another's, which may have left plans and submissions behind.
uint64_t FirstOperationId(uint64_t worker_incarnation) {
  constexpr int kIncarnationShift = 40;
  return (worker_incarnation << kIncarnationShift) | 1;
}

absl::Status Watch(int epoll, int fd, uint64_t data, uint32_t events, int operation) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = data;
  if (epoll_ctl(epoll, operation, fd, &event) == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("epoll_ctl: ", std::strerror(errno)));
}

void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void Pause(absl::Duration pause) {
  if (pause > absl::ZeroDuration()) {
    absl::SleepFor(pause);
  } else {
    Relax();
  }
}

}  // namespace

ExecLoop::ExecLoop(EpdSocket& epd, const v1::WorkerHello& hello, ExecLoopParts parts,
                   const volatile std::sig_atomic_t& stop)
    : epd_(epd),
      records_(std::move(parts.records)),
      backends_(std::move(parts.backends)),
      no_cuda_(std::move(parts.no_cuda)),
      has_device_(std::any_of(backends_.begin(), backends_.end(),
                              [](const auto& backend) { return IsOnDevice(backend->name()); })),
      wire_(std::move(parts.wire)),
      stop_(stop),
      epd_pid_(getppid()),
      asked_spin_(absl::Seconds(hello.spin().seconds()) + absl::Nanoseconds(hello.spin().nanos())),
      num_cpus_(NumCpus()),
      exchange_(ExchangeOptions{.staging_bytes = hello.staging_bytes(),
                                .device_staging_bytes = hello.cuda_staging_bytes(),
                                .first_operation_id = FirstOperationId(hello.worker_incarnation()),
                                .limits = LimitsFromProto(hello.limits()),
                                .self = Incarnation(hello.worker_incarnation()),
                                .traced_per_second = TracedPerSecond(num_cpus_)}),
      performer_(exchange_, sessions_, records_, backends_, epd_, wire_.get(), time_,
                 std::move(parts.page_program)),
      id_maker_(std::move(parts.make_unique_id)) {
  performer_.arenas().LimitUsers(LimitsFromProto(hello.limits()).staging_per_uid);
}

absl::Time ExecLoop::Now() {
  timespec clock = {};
  clock_gettime(CLOCK_MONOTONIC, &clock);
  unsaid_ += time_.Look(absl::TimeFromTimespec(clock) +
                        absl::Nanoseconds(EPD_FAILPOINT_JUMPED("worker.clock")));
  return time_.now();
}

void ExecLoop::SayStandstill() {
  const absl::Duration lost = std::exchange(unsaid_, absl::ZeroDuration());
  if (lost < kStandstillSaid) return;
  performer_.Log(LogLine{
      Severity::kWarning,
      absl::StrCat("the worker did not run for ", InMilliseconds(lost),
                   ": it was stopped or frozen, or the machine was suspended or too busy; all "
                   "deadlines wait as much longer")});
}

absl::Status ExecLoop::SetUp() {
  epoll_ = UniqueFd(
      EPD_FAILPOINT_CALL("worker.start.no_descriptor", EMFILE, epoll_create1(EPOLL_CLOEXEC)));
  if (!epoll_.valid()) {
    return absl::ResourceExhaustedError(absl::StrCat("epoll_create1: ", std::strerror(errno)));
  }
  absl::Status status = Watch(epoll_.get(), epd_.fd(), kControl, EPOLLIN, EPOLL_CTL_ADD);
  if (!status.ok()) return status;
  if (status = id_maker_.Start(); !status.ok()) return status;
  status = Watch(epoll_.get(), id_maker_.ready_fd(), kIdMaker, EPOLLIN, EPOLL_CTL_ADD);
  if (!status.ok()) return status;
  if (status = performer_.arenas().Start(); !status.ok()) return status;
  status = Watch(epoll_.get(), performer_.arenas().ready_fd(), kPages, EPOLLIN, EPOLL_CTL_ADD);
  if (!status.ok() || wire_ == nullptr) return status;
  if (status = wire_->status(); !status.ok()) return status;
  const auto [once, while_ready] = wire_->ready_fds();
  status = Watch(epoll_.get(), once, kWire, EPOLLIN | EPOLLET, EPOLL_CTL_ADD);
  if (!status.ok()) return status;
  return Watch(epoll_.get(), while_ready, kWire, EPOLLIN, EPOLL_CTL_ADD);
}

absl::Status ExecLoop::Run() {
  status_ = SetUp();
  WakeInTime();
  // On one node clients wake it in turn, and it would only take their core from them.
  if (wire_ != nullptr) TakeShortSlices();
  absl::Time next_control = absl::InfinitePast();
  absl::Time spin_until = absl::InfinitePast();
  absl::Time last_busy = absl::InfinitePast();
  while (status_.ok() && stop_ == 0) {
    const bool makes_arenas = performer_.arenas().has_work();
    if (makes_arenas || performer_.arenas().awaits_pages()) performer_.WorkOnArenas(Now());
    const bool scanned = ScanSessions();
    const bool busy = TakeWire() || scanned || makes_arenas;
    const absl::Time now = Now();
    SayStandstill();
    if (performer_.EndSetsWithoutPages(now)) performer_.RunAll(now);
    const bool device_busy = performer_.busy();
    if (device_busy) performer_.PollBackends(now);
    if (performer_.awaits_direct()) performer_.PollDirect(now);
    if (performer_.awaits_streams()) performer_.PollStreams(now);
    if (busy) {
      last_busy = now;
      spin_until = now + SpinTime(asked_spin_, num_cpus_, static_cast<int>(sessions_.size()));
    }
    if (now >= next_control) {
      next_control = now + kControlPeriod;
      PollEvents(0);
    } else if (!busy && now < spin_until) {
      Relax();
    } else if (!busy && device_busy) {
      Pause(DevicePause(now - last_busy, num_cpus_, static_cast<int>(sessions_.size())));
    } else if (!busy && HasStreams()) {
      Pause(StreamPause(exchange_.num_open_operations() > 0, now - last_busy));
    } else if (!busy) {
      Sleep();
      next_control = Now() + kControlPeriod;
    }
    if (NextDeadline() <= now) {
      performer_.TakeDueDirect(now);
      exchange_.Tick(now);
      performer_.TickArenas(now);
      performer_.RunAll(now);
      SendMadeIds();
    }
    if (status_.ok()) status_ = performer_.status();
  }
  if (status_.ok()) status_ = absl::UnavailableError("epd asked it to stop");
  if (performer_.device_lost()) {
    LeaveToEpd();
  } else {
    AbortEverything();
  }
  return status_;
}

bool ExecLoop::HasStreams() const {
  return std::any_of(sessions_.begin(), sessions_.end(),
                     [](const auto& session) { return session.second.has_streams(); });
}

bool ExecLoop::ScanSessions() {
  int taken = 0;
  absl::Time now;
  const SessionScan::Taker take = [&](const Submission& submission,
                                      const shm::SlotRequest& request) {
    if (taken++ == 0) now = Now();
    const size_t num_parts = exchange_.NumParts(request);
    performer_.Take(submission, request, now);
    return num_parts;
  };
  for (const EvictSession& unserved : scan_.Take(take)) performer_.Evict(unserved);
  if (taken > 0) performer_.RunAll(now);
  return taken > 0;
}

bool ExecLoop::TakeWire() {
  if (wire_ == nullptr) return false;
  std::vector<WireEvent> events = wire_->Take();
  if (events.empty()) return false;
  const absl::Time now = Now();
  performer_.EndSetsWithoutPages(now);
  for (WireEvent& event : events) {
    if (auto* said = std::get_if<PeerSaid>(&event)) {
      performer_.Hear(std::move(*said), now);
    } else if (const auto* came = std::get_if<RowsCame>(&event)) {
      exchange_.RowsLanded(came->operation, came->rank, now);
    } else if (const auto* refused = std::get_if<StageRefused>(&event)) {
      exchange_.RowsRefused(refused->operation, refused->rank, refused->cause, now);
    } else if (const auto* foreign = std::get_if<PeerRefused>(&event)) {
      performer_.Log(
          LogLine{Severity::kWarning, absl::StrCat("peer refused: ", foreign->why.message())});
    } else {
      const auto& gone = std::get<PeerGone>(event);
      wire_->Forget(gone.peer);
      exchange_.PeerLost(gone.peer, gone.cause, now);
      performer_.WorkerLost(gone.peer, gone.cause, now);
    }
    performer_.RunAll(now);
  }
  return true;
}

// Clients ring only while `asleep` is set. Either the last scan here sees what a client armed, or
// the client, which fences between arming and reading `asleep`, sees the flag.
void ExecLoop::Sleep() {
  for (auto& [unused, session] : sessions_) session.SetAsleep(true);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const bool scanned = ScanSessions();
  if (!TakeWire() && !scanned) PollEvents(TimeoutMs());
  for (auto& [unused, session] : sessions_) session.SetAsleep(false);
}

absl::Time ExecLoop::NextDeadline() const {
  return std::min(
      {exchange_.next_deadline(), id_maker_.next_deadline(), performer_.arenas().next_deadline()});
}

// Of the sleep that follows at once.
int ExecLoop::TimeoutMs() {
  // Who ends a call for itself rings nothing, nor does who has no more streams.
  if (performer_.awaits_direct() || performer_.awaits_streams()) return 1;
  const absl::Time deadline = NextDeadline();
  const absl::Duration nap =
      std::min(RunningTime::Nap(absl::Ceil(deadline - Now(), absl::Milliseconds(1))),
               absl::Milliseconds(kMaxSleepMs));
  time_.Sleeps(nap);
  return static_cast<int>(absl::ToInt64Milliseconds(nap));
}

void ExecLoop::PollEvents(int timeout_ms) {
  epoll_event events[kMaxEvents];
  const int count = epoll_wait(epoll_.get(), events, kMaxEvents, timeout_ms);
  for (int i = 0; i < count; ++i) {
    const uint64_t data = events[i].data.u64;
    if (data == kControl) {
      if ((events[i].events & EPOLLOUT) != 0) Fail(epd_.Flush());
      if ((events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) ReadControl();
    } else if (data == kIdMaker) {
      SendMadeIds();
    } else if (data == kPages) {
      performer_.WorkOnArenas(Now());
    }  // Else a session or a stream rang; the next scan sees why.
  }
  if (epd_.wants_write() != watches_write_) {
    watches_write_ = epd_.wants_write();
    const uint32_t wanted = EPOLLIN | (watches_write_ ? static_cast<uint32_t>(EPOLLOUT) : 0u);
    Fail(Watch(epoll_.get(), epd_.fd(), kControl, wanted, EPOLL_CTL_MOD));
  }
}

void ExecLoop::Fail(const absl::Status& status) {
  if (status_.ok()) status_ = status;
}

// The signal that comes with the end of epd comes before its socket is closed, while its other threads still end; with
// each of them it comes again.
bool ExecLoop::EpdHasEnded() {
  const absl::Time deadline = Now() + kEpdEnds;
  for (absl::Duration left = kEpdEnds; left > absl::ZeroDuration(); left = deadline - Now()) {
    pollfd socket = {.fd = epd_.fd(), .events = POLLRDHUP, .revents = 0};
    const int64_t ms = absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1)));
    if (poll(&socket, 1, static_cast<int>(ms)) > 0) return true;
  }
  return false;
}

// Nobody else can answer any more: epd is gone, or about to reap this worker.
void ExecLoop::AbortEverything() {
  const std::string why = EpdHasEnded() ? absl::StrCat("its epd (pid ", epd_pid_, ") has ended")
                                        : std::string(status_.message());
  const absl::Time now = Now();
  EPD_FAILPOINT("worker.stop.abort");
  performer_.LeavePages();
  exchange_.Stop(why, now);
  performer_.RunAll(now);
  for (auto& [unused, session] : sessions_) session.AbortOpenSubmissions(WorkerStops(why));
}

// epd lives: once this process is gone it answers every open submission from the records, after it has told
// the clients to wait for the worker that replaces this one.
void ExecLoop::LeaveToEpd() {
  v1::FromWorker message;
  *message.mutable_ends()->mutable_cause() = ToProto(status_);
  epd_.Send(message).IgnoreError();
  performer_.LeavePages();
  exchange_.EndEverything(
      WorkerGone("this node's worker", absl::StrCat("its device failed: ", status_.message())),
      Now());
  performer_.RunRecords();
}

}  // namespace epd
