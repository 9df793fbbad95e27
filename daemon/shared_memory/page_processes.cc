#include "daemon/shared_memory/page_processes.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/core/system_call_error.h"
#include "daemon/shared_memory/page_process.h"

namespace epd {
namespace {

// Sessions that end at once need one process of their user; a start takes 13 ms of CPU time.
constexpr absl::Duration kRests = absl::Milliseconds(300);
// An order is some thousand pages: a millisecond, or some where the machine is busy.
constexpr absl::Duration kLate = absl::Seconds(1);
// In one task: then something ends each of them.
constexpr int kMaxEnds = 2;
// Where no process can be had, or none that does not end.
constexpr absl::Duration kRetry = absl::Milliseconds(200);
constexpr char kRaiseDescriptors[] = "raise the limit on descriptors (ulimit -n, LimitNOFILE)";
// epoll's data of a process's end; else a uid.
constexpr uint64_t kEnds = UINT64_MAX;

bool Watch(int epoll, int fd, uint64_t data) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = data;
  return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

const char* NameOf(PageAction action) {
  return action == PageAction::kMake ? "made" : "given back";
}

// An errno that another try may not meet: the process was short of descriptors for what came with the order, or, of what cannot
// fail for good, of memory.
bool Passes(PageAction action, int error) {
  return error == EPROTO || (action == PageAction::kGiveBack && error == ENOMEM);
}

}  // namespace

absl::Status PageProcesses::Start() {
  if (epoll_.valid()) return absl::OkStatus();
  epoll_.reset(epoll_create1(EPOLL_CLOEXEC));
  if (epoll_.valid()) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("epoll_create1: ", std::strerror(errno)));
}

absl::Status PageProcesses::StartProcess(uint32_t uid, Process& process) {
  if (process.socket.valid()) return absl::OkStatus();
  if (program_.empty() || !epoll_.valid())
    return absl::FailedPreconditionError("nothing that makes pages has been started");
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
    return SystemCallError("socketpair", errno, kRaiseDescriptors);
  UniqueFd ours(pair[0]);
  const UniqueFd theirs(pair[1]);
  absl::StatusOr<Child> child = Spawn(program_, {kPageProcessFlag}, theirs.get(), kPageProcessName);
  if (!child.ok()) return child.status();
  process.child = *std::move(child);
  process.socket = std::move(ours);
  if (Watch(epoll_.get(), process.socket.get(), uid) &&
      Watch(epoll_.get(), process.child.pidfd.get(), kEnds))
    return absl::OkStatus();
  const int error = errno;
  Drop(process);
  return SystemCallError("epoll_ctl", error, "raise fs.epoll.max_user_watches, or free memory");
}

void PageProcesses::SetProblem(Process& process, std::string problem) {
  if (process.problem == problem) return;
  process.problem = std::move(problem);
  problems_changed_ = true;
}

std::optional<std::map<uint32_t, std::string>> PageProcesses::TakeProblems() {
  if (!std::exchange(problems_changed_, false)) return std::nullopt;
  std::map<uint32_t, std::string> problems;
  for (const auto& [uid, process] : processes_) {
    if (!process.problem.empty()) problems[uid] = process.problem;
  }
  return problems;
}

void PageProcesses::Drop(Process& process) {
  if (!process.socket.valid()) return;
  process.socket.reset();
  process.late = process.goes = absl::InfiniteFuture();
  ended_.push_back(std::move(process.child));
}

void PageProcesses::Hold(uint32_t uid) {
  Process& process = processes_[uid];
  process.is_held = true;
  process.goes = absl::InfiniteFuture();
  // One that cannot be had is tried again once something is to be done.
  StartProcess(uid, process).IgnoreError();
}

void PageProcesses::Release(uint32_t uid, absl::Time now) {
  const auto found = processes_.find(uid);
  if (found == processes_.end()) return;
  found->second.is_held = false;
  Rest(found->second, now);
}

void PageProcesses::Rest(Process& process, absl::Time now) {
  if (process.tasks.empty() && !process.is_held) process.goes = now + kRests;
}

void PageProcesses::Add(uint32_t uid, Task task, absl::Time now) {
  Reap();
  ++num_open_;
  Process& process = processes_[uid];
  process.tasks.push_back(std::move(task));
  if (process.tasks.size() > 1) return;
  process.goes = absl::InfiniteFuture();
  Send(uid, process, now);
}

void PageProcesses::Send(uint32_t uid, Process& process, absl::Time now) {
  while (!process.tasks.empty()) {
    const Task& task = process.tasks.front();
    if (process.num_sent == task.pages.size()) {
      FinishFirst(process, 0);
      continue;
    }
    if (program_.empty()) {
      DoHere(process);
      continue;
    }
    if (const absl::Status started = StartProcess(uid, process); !started.ok())
      return TryLater(uid, process, std::string(started.message()), now);
    const size_t num = std::min(task.pages.size() - process.num_sent, kMaxPagesOfOrder);
    const absl::Status sent =
        SendPageOrder(process.socket.get(), task.action,
                      absl::MakeConstSpan(task.pages).subspan(process.num_sent, num));
    if (!sent.ok()) return Ended(uid, process, std::string(sent.message()), now);
    process.num_sent += num;
    process.late = now + kLate;
    return;
  }
  Rest(process, now);
}

void PageProcesses::Receive(uint32_t uid, Process& process, absl::Time now) {
  const absl::StatusOr<int> answer = ReceivePageAnswer(process.socket.get());
  if (absl::IsNotFound(answer.status())) return;
  if (answer.ok() && !process.tasks.empty() && process.num_sent > process.num_answered)
    return Answered(uid, process, *answer, now);
  Ended(uid, process,
        "the process that makes them ends each time; raise the limit of processes or memory, and "
        "look at the kernel's log for whoever ends it",
        now);
}

void PageProcesses::Answered(uint32_t uid, Process& process, int error, absl::Time now) {
  const PageAction action = process.tasks.front().action;
  process.late = absl::InfiniteFuture();
  if (error != 0 && Passes(action, error)) {
    process.num_sent = process.num_answered;
    return TryLater(
        uid, process,
        absl::StrCat(std::strerror(error), "; raise the limits on descriptors and memory"), now);
  }
  process.said_retry = false;
  SetProblem(process, "");
  process.num_answered = process.num_sent;
  if (error != 0) {
    if (action == PageAction::kGiveBack) {
      warnings_.push_back(
          {uid, absl::StrCat("pages of user ", uid, " stay in memory: ", std::strerror(error))});
    }
    FinishFirst(process, error);
  }
  Send(uid, process, now);
}

void PageProcesses::Ended(uint32_t uid, Process& process, const std::string& why, absl::Time now) {
  Drop(process);
  process.num_sent = process.num_answered;
  if (process.tasks.empty()) return Rest(process, now);
  if (++process.num_ends < kMaxEnds) return Send(uid, process, now);
  TryLater(uid, process, why, now);
}

void PageProcesses::TryLater(uint32_t uid, Process& process, const std::string& why,
                             absl::Time now) {
  process.num_ends = 0;
  process.retry = now + kRetry;
  SetProblem(process,
             absl::StrCat("pages of user ", uid, " are not ", NameOf(process.tasks.front().action),
                          ", and operations that need them wait: ", why));
  if (!std::exchange(process.said_retry, true)) warnings_.push_back({uid, process.problem});
}

void PageProcesses::FinishFirst(Process& process, int error) {
  done_.push_back({.id = process.tasks.front().id, .error = error});
  process.tasks.pop_front();
  process.num_sent = process.num_answered = 0;
  process.num_ends = 0;
}

void PageProcesses::DoHere(Process& process) {
  const Task& task = process.tasks.front();
  int error = 0;
  for (size_t i = 0; i < task.pages.size() && error == 0; ++i)
    error = DoPageAction(task.action, task.pages[i]);
  FinishFirst(process, error);
}

std::vector<PageProcesses::Done> PageProcesses::TakeDone(absl::Time now) {
  constexpr int kAtOnce = 16;
  epoll_event events[kAtOnce];
  const int count = epoll_.valid() ? epoll_wait(epoll_.get(), events, kAtOnce, 0) : 0;
  for (int i = 0; i < count; ++i) {
    if (events[i].data.u64 == kEnds) continue;  // See Reap.
    const auto uid = static_cast<uint32_t>(events[i].data.u64);
    const auto found = processes_.find(uid);
    if (found != processes_.end() && found->second.socket.valid()) Receive(uid, found->second, now);
  }
  Reap();
  num_open_ -= done_.size();
  return std::exchange(done_, {});
}

void PageProcesses::Tick(absl::Time now) {
  for (auto it = processes_.begin(); it != processes_.end();) {
    const auto of_uid = it++;
    if (now < of_uid->second.goes) continue;
    SetProblem(of_uid->second, "");
    Drop(of_uid->second);
    processes_.erase(of_uid);
  }
  for (auto& [uid, process] : processes_) {
    if (now >= process.retry) {
      process.retry = absl::InfiniteFuture();
      Send(uid, process, now);
    }
    if (now < process.late) continue;
    process.late = absl::InfiniteFuture();
    SetProblem(process,
               absl::StrCat("the kernel has not ", NameOf(process.tasks.front().action),
                            " pages of user ", uid, " for ", absl::FormatDuration(kLate),
                            ": a process of that user holds the lock of a file of its staging or "
                            "slots, by a write() that does not end, or memory is short; operations "
                            "of that user wait, nobody else's"));
    warnings_.push_back({uid, process.problem});
  }
}

bool PageProcesses::awaits_soon() const {
  return std::any_of(processes_.begin(), processes_.end(), [](const auto& process) {
    return process.second.late != absl::InfiniteFuture();
  });
}

absl::Time PageProcesses::next_deadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [unused, process] : processes_)
    next = std::min({next, process.late, process.retry, process.goes});
  return next;
}

void PageProcesses::Reap() {
  std::erase_if(ended_, [](const Child& child) { return !epd::Reap(child).empty(); });
}

void PageProcesses::End(absl::Duration limit) {
  for (auto& [unused, process] : processes_) Drop(process);
  processes_.clear();
  done_.clear();
  num_open_ = 0;
  const absl::Time until = absl::Now() + limit;
  for (Reap(); !ended_.empty() && absl::Now() < until; Reap())
    absl::SleepFor(absl::Milliseconds(1));
}

std::vector<int> PageProcesses::NotEnded() const {
  std::vector<int> pids;
  for (const Child& child : ended_) pids.push_back(child.pid);
  return pids;
}

void PageProcesses::AdoptEnding(int pid) {
  Child child = {.pid = pid, .pidfd = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)))};
  if (child.pidfd.valid()) Watch(epoll_.get(), child.pidfd.get(), kEnds);
  ended_.push_back(std::move(child));
}

}  // namespace epd
