#include "daemon/node/workers/worker_supervisor.h"

#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/node/random_number.h"
#include "daemon/observe/log.h"
#include "proto/failpoint/failpoint.h"

namespace epd {
namespace {

// Messages taken per turn of the loop, so that a chatty worker does not keep clients waiting.
constexpr int kMessagesPerTurn = 64;
// It is killed this long after its socket has closed.
constexpr absl::Duration kEndsWithin = absl::Seconds(1);
// A killed process ends; only the kernel can delay it (a core dump, a disk that hangs).
constexpr absl::Duration kDiesWithin = absl::Seconds(5);
// A GPU's worker tries the driver in a process that has 30 s, and then opens the GPU itself: so long it has at least.
constexpr absl::Duration kGpuStart = absl::Seconds(90);
constexpr absl::string_view kUnanswered = " (worker_stuck)";

bool EndsBy(const Child& child, absl::Duration patience) {
  pollfd ended = {child.pidfd.get(), POLLIN, 0};
  const int64_t left = absl::ToInt64Milliseconds(std::max(patience, absl::ZeroDuration()));
  return poll(&ended, 1, static_cast<int>(std::min<int64_t>(left, 3600'000))) > 0;
}

// For how long an answer is waited for.
absl::Duration PatienceWith(const WorkerSupervisor::Options& options,
                            WorkerSupervisor::State state) {
  const bool starts = state == WorkerSupervisor::State::kStarting;
  return starts && options.hello.has_cuda_device() ? std::max(options.stuck, kGpuStart)
                                                   : options.stuck;
}

// One word of few: `how` is Reap()'s, `killed_because` why epd killed it.
std::string RestartCause(const std::string& how, const std::string& killed_because) {
  if (absl::EndsWith(killed_because, kUnanswered)) return "unanswered";
  if (!killed_because.empty()) return "killed_by_epd";
  int signal = 0;
  if (std::sscanf(how.c_str(), "killed by signal %d", &signal) == 1)
    return absl::StrCat("signal_", signal);
  return "exited";
}

}  // namespace

absl::string_view Name(WorkerSupervisor::State state) {
  constexpr absl::string_view kNames[] = {"STARTING", "RUNNING", "BACKING_OFF", "STOPPED"};
  return kNames[static_cast<size_t>(state)];
}

std::string WaitsFor(const WorkerSupervisor::Figures& figures) {
  return figures.held_up_by.has_value() ? absl::StrCat("memory of uid=", *figures.held_up_by) : "";
}

WorkerSupervisor::WorkerSupervisor(Options options, EventLoop& loop, const SharedSegment& records,
                                   WorkerObserver& observer)
    : options_(std::move(options)),
      loop_(loop),
      records_(records),
      observer_(observer),
      backoff_(options_.backoff) {}

WorkerSupervisor::~WorkerSupervisor() { Stop(MonotonicNow()); }

void WorkerSupervisor::Enter(State state, absl::Time now) {
  figures_.state = state;
  figures_.since = now;
}

PacketChannel WorkerSupervisor::MakeChannel(UniqueFd socket) const {
  PacketChannel channel(std::move(socket), /*max_queued_packets=*/16384,
                        /*max_queued_bytes=*/size_t{64} << 20);
  channel.AllowDescriptorsAhead();
  return channel;
}

absl::Status WorkerSupervisor::WatchChild() {
  absl::Status watched;
  if (channel_.has_value()) {
    watched = loop_.Add(channel_->fd(), EPOLLIN, [this](uint32_t events) { OnSocket(events); });
  }
  watched.Update(loop_.Add(child_->pidfd.get(), EPOLLIN, [this](uint32_t) { OnExit(); }));
  return watched;
}

void WorkerSupervisor::Start(absl::Time now) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
    return StartFailed(
        now, absl::ResourceExhaustedError(absl::StrCat("socketpair: ", std::strerror(errno))));
  }
  UniqueFd ours(pair[0]);
  UniqueFd theirs(pair[1]);
  WidenSendBuffer(theirs.get());
  absl::StatusOr<Child> child = Spawn(options_.binary, {"--control-fd=3"}, theirs.get());
  if (!child.ok()) return StartFailed(now, child.status());
  child_ = *std::move(child);
  channel_.emplace(MakeChannel(std::move(ours)));
  killed_because_.clear();
  said_.Clear();
  deaf_since_ = absl::InfiniteFuture();
  hold_up_.Reset();
  started_at_ = now;
  figures_.pid = child_->pid;
  figures_.worker_incarnation = RandomNumber();
  figures_.asked_at = now;  // WorkerReady is the first answer awaited.
  next_heartbeat_ = absl::InfiniteFuture();
  Enter(State::kStarting, now);
  Log(LogLevel::kInfo, "worker starting",
      {{"worker_pid", child_->pid}, {"worker", options_.name}, {"binary", options_.binary}});

  if (const absl::Status watched = WatchChild(); !watched.ok())
    Kill(absl::StrCat("it cannot be watched: ", watched.message()));

  v1::ToWorker hello;
  *hello.mutable_hello() = options_.hello;
  hello.mutable_hello()->set_worker_incarnation(figures_.worker_incarnation);
  PacketChannel::Fds fds = options_.certificates;
  fds.insert(fds.begin(), records_.fd());
  EPD_FAILPOINT("epd.worker.started");
  Send(hello, std::move(fds));
  observer_.OnWorkerSpawned();
}

void WorkerSupervisor::StartFailed(absl::Time now, const absl::Status& why) {
  const absl::Duration wait = backoff_.AfterEnd(absl::ZeroDuration());
  next_start_ = now + wait;
  figures_.pid = 0;
  figures_.last_exit = std::string(why.message());
  ++figures_.num_restarts;
  ++figures_.restarts["not_started"];
  Enter(State::kBackingOff, now);
  Log(LogLevel::kError, "worker start failed",
      {{"worker", options_.name},
       {"why", why.message()},
       {"next_try", absl::FormatDuration(wait)}});
  observer_.OnWorkerDead(
      0, false, absl::UnavailableError(absl::StrCat("it does not start: ", why.message())));
}

void WorkerSupervisor::OnSocket(uint32_t events) {
  if ((events & EPOLLOUT) != 0) {
    if (const absl::Status sent = channel_->Flush(); !sent.ok()) return SendFailed(sent);
    if (!channel_->wants_write()) loop_.SetEvents(channel_->fd(), EPOLLIN);
  }
  for (int i = 0; i < kMessagesPerTurn && channel_.has_value(); ++i) {
    bool would_block = false;
    absl::StatusOr<Packet> packet = channel_->Receive(&would_block);
    if (would_block) return;
    if (absl::IsUnavailable(packet.status())) return Disconnect();
    v1::FromWorker message;
    if (!packet.ok() || !message.ParseFromString(packet->bytes)) {
      Log(LogLevel::kError, "a worker's message is left out",
          {{"worker_pid", figures_.pid},
           {"worker", options_.name},
           {"why", packet.ok() ? absl::StrCat("its ", packet->bytes.size(),
                                              " bytes are not of worker.proto")
                               : std::string(packet.status().message())}});
      continue;
    }
    OnMessage(message, std::move(packet->fds));
  }
}

void WorkerSupervisor::OnMessage(const v1::FromWorker& message, std::vector<UniqueFd> fds) {
  const absl::Time now = MonotonicNow();
  if (message.has_ready() && figures_.state == State::kStarting) {
    EPD_FAILPOINT("epd.worker.ready");
    figures_.ready = message.ready();
    figures_.asked_at = absl::InfiniteFuture();
    next_heartbeat_ = now + options_.heartbeat;
    Enter(State::kRunning, now);
    Log(LogLevel::kInfo, "worker ready",
        {{"worker_pid", figures_.pid},
         {"worker", options_.name},
         {"backend", message.ready().backend()},
         {"simd", message.ready().simd()},
         {"nccl", message.ready().nccl_version().empty() ? message.ready().nccl_problem()
                                                         : message.ready().nccl_version()}});
    observer_.OnWorkerReady(figures_.worker_incarnation, message.ready());
    return;
  }
  if (message.has_snapshot()) return OnSnapshot(message.snapshot());
  observer_.OnWorkerMessage(figures_.worker_incarnation, message, std::move(fds));
}

void WorkerSupervisor::OnSnapshot(v1::WorkerSnapshot part) {
  const bool more = part.more();
  part.clear_more();
  said_.mutable_snapshot()->MergeFrom(part);
  if (more) return;
  const absl::Time now = MonotonicNow();
  const v1::FromWorker whole = std::exchange(said_, {});
  figures_.snapshot = whole.snapshot();
  figures_.snapshot_at = now;
  figures_.asked_at = absl::InfiniteFuture();
  hold_up_.Reset();
  next_heartbeat_ = now + options_.heartbeat;
  observer_.OnWorkerMessage(figures_.worker_incarnation, whole, {});
}

// It is ending, and the pidfd will say how; one that only closed its socket is killed by Tick.
void WorkerSupervisor::Disconnect() {
  loop_.Remove(channel_->fd());
  channel_.reset();
  deaf_since_ = MonotonicNow();
}

void WorkerSupervisor::SendFailed(const absl::Status& why) {
  if (absl::IsUnavailable(why)) return Disconnect();
  Kill(absl::StrCat("it cannot be sent to: ", why.message()));
}

void WorkerSupervisor::OnExit() {
  EPD_FAILPOINT("epd.worker.reap");
  const std::string how = Reap(*child_);
  if (how.empty()) return;
  const absl::Time now = MonotonicNow();
  const bool was_ready = figures_.state == State::kRunning;
  const int pid = child_->pid;
  loop_.Remove(child_->pidfd.get());
  if (channel_.has_value()) loop_.Remove(channel_->fd());
  channel_.reset();
  child_.reset();
  deaf_since_ = absl::InfiniteFuture();
  const absl::Duration wait = backoff_.AfterEnd(now - started_at_);
  next_start_ = now + wait;
  next_heartbeat_ = absl::InfiniteFuture();
  figures_.asked_at = absl::InfiniteFuture();
  figures_.pid = 0;
  figures_.last_exit =
      killed_because_.empty() ? how : absl::StrCat(how, " by epd: ", killed_because_);
  ++figures_.num_restarts;
  ++figures_.restarts[RestartCause(how, killed_because_)];
  Enter(State::kBackingOff, now);
  Log(LogLevel::kError, "worker ended",
      {{"worker_pid", pid},
       {"how", figures_.last_exit},
       {"worker", options_.name},
       {"next_start", absl::FormatDuration(wait)}});
  observer_.OnWorkerDead(
      figures_.worker_incarnation, was_ready,
      absl::UnavailableError(absl::StrCat("pid ", pid, " ended: ", figures_.last_exit)));
}

void WorkerSupervisor::Kill(const std::string& why) {
  if (!child_.has_value()) return;
  if (EndsBy(*child_, absl::ZeroDuration())) return;  // By itself; the pidfd tells how.
  if (killed_because_.empty()) killed_because_ = why;
  syscall(SYS_pidfd_send_signal, child_->pidfd.get(), SIGKILL, nullptr, 0);
}

void WorkerSupervisor::Send(const v1::ToWorker& message, PacketChannel::Fds fds) {
  if (!channel_.has_value() || EPD_FAILPOINT_FAILS("epd.worker.send")) return;
  const absl::Status sent = channel_->Send(message.SerializeAsString(), std::move(fds));
  if (absl::IsInvalidArgument(sent)) {
    return Log(LogLevel::kError, "a message to the worker is left out",
               {{"worker_pid", figures_.pid},
                {"worker", options_.name},
                {"kind", static_cast<int>(message.body_case())},
                {"why", sent.message()}});
  }
  if (!sent.ok()) return SendFailed(sent);
  if (channel_->wants_write()) loop_.SetEvents(channel_->fd(), EPOLLIN | EPOLLOUT);
}

void WorkerSupervisor::AskForSnapshot(absl::Time now) {
  if (figures_.state != State::kRunning || figures_.asked_at != absl::InfiniteFuture()) return;
  figures_.asked_at = now;
  v1::ToWorker message;
  message.mutable_get_snapshot()->set_request_id(next_request_++);
  Send(message);
}

void WorkerSupervisor::LookAtWorker(absl::Time now) {
  if (!running() || now < hold_up_.NextLook(figures_.asked_at)) return;
  hold_up_.Add({.waits_in_kernel = options_.waits_in_kernel(figures_.pid),
                .touched = Records(records_).touched()},
               now);
}

bool WorkerSupervisor::UpdateSilence(absl::Time now) {
  LookAtWorker(now);
  const bool silent = running() && now >= figures_.asked_at + options_.silence;
  const std::optional<uint32_t> held_up_by = silent ? hold_up_.uid() : std::nullopt;
  if (std::exchange(figures_.held_up_by, held_up_by) != held_up_by && held_up_by.has_value()) {
    Log(LogLevel::kError, "worker waits in the kernel for a user's memory",
        {{"worker_pid", figures_.pid}, {"worker", options_.name}, {"uid", *held_up_by}});
    observer_.OnWorkerHeldUp(*held_up_by);
  }
  if (std::exchange(figures_.silent, silent) == silent) return false;
  if (running()) {
    Log(silent ? LogLevel::kWarn : LogLevel::kInfo,
        silent ? "worker does not answer" : "worker answers again",
        {{"worker_pid", figures_.pid}, {"worker", options_.name}});
  }
  return true;
}

bool WorkerSupervisor::Tick(absl::Time now) {
  const bool changed = UpdateSilence(now);
  if (figures_.state == State::kBackingOff && now >= next_start_) {
    Start(now);
    return changed;
  }
  if (figures_.state == State::kRunning && now >= next_heartbeat_) {
    next_heartbeat_ = absl::InfiniteFuture();  // Set again by the answer.
    AskForSnapshot(now);
  }
  if (killed_because_.empty() && now >= deaf_since_ + kEndsWithin) Kill("it closed its socket");
  const absl::Duration patience = PatienceWith(options_, figures_.state);
  if (child_.has_value() && killed_because_.empty() && now >= figures_.asked_at + patience) {
    Kill(absl::StrCat("it did not answer for ", absl::FormatDuration(patience),
                      patience == options_.stuck ? "" : " as it started", kUnanswered));
  }
  return changed;
}

absl::Time WorkerSupervisor::NextDeadline() const {
  if (figures_.state == State::kStopped) return absl::InfiniteFuture();
  if (figures_.state == State::kBackingOff) return next_start_;
  if (!killed_because_.empty()) return absl::InfiniteFuture();  // The pidfd tells.
  const absl::Duration patience = running() && !figures_.silent
                                      ? std::min(options_.silence, options_.stuck)
                                      : PatienceWith(options_, figures_.state);
  const absl::Time next_look =
      running() ? hold_up_.NextLook(figures_.asked_at) : absl::InfiniteFuture();
  return std::min(
      {next_heartbeat_, next_look, figures_.asked_at + patience, deaf_since_ + kEndsWithin});
}

void WorkerSupervisor::HangUp() {
  if (channel_.has_value()) Disconnect();
}

void WorkerSupervisor::Stop(absl::Time deadline) {
  if (figures_.state == State::kStopped) return;
  if (channel_.has_value()) loop_.Remove(channel_->fd());
  channel_.reset();
  if (child_.has_value()) {
    loop_.Remove(child_->pidfd.get());
    if (!EndsBy(*child_, deadline - MonotonicNow())) {
      Log(LogLevel::kWarn, "worker killed at the end",
          {{"worker_pid", child_->pid}, {"worker", options_.name}});
      Kill("it did not end in time");
      if (!EndsBy(*child_, kDiesWithin)) {
        Log(LogLevel::kError, "worker does not end",
            {{"worker_pid", child_->pid},
             {"worker", options_.name},
             {"waited", absl::FormatDuration(kDiesWithin)}});
      }
    }
    figures_.last_exit = Reap(*child_);
    child_.reset();
  }
  figures_.pid = 0;
  Enter(State::kStopped, MonotonicNow());
}

}  // namespace epd
