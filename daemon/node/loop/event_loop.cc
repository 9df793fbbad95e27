#include "daemon/node/loop/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/running_time.h"
#include "proto/failpoint/failpoint.h"

namespace epd {

namespace {

// Of the process, as its clock is: threads of gRPC ask for the time, too. Only the loop writes it.
std::atomic<int64_t> g_stood_still_ns{0};

// Of the loop that this thread runs.
thread_local RunningTime t_time;
thread_local absl::Duration t_unsaid = absl::ZeroDuration();

}  // namespace

absl::Time ClockNow() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return absl::TimeFromTimespec(now) + absl::Nanoseconds(EPD_FAILPOINT_JUMPED("epd.clock"));
}

absl::Duration StoodStill() {
  return absl::Nanoseconds(g_stood_still_ns.load(std::memory_order_relaxed));
}

absl::Time MonotonicNow() { return ClockNow() - StoodStill(); }

EventLoop::EventLoop(size_t max_requests)
    : epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      max_requests_(max_requests) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = 0;
  if (!epoll_.valid() || !wake_.valid() ||
      epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) != 0) {
    std::fprintf(stderr, "epd: cannot make an epoll set: %s; raise the limit of open files\n",
                 std::strerror(errno));
    std::exit(1);
  }
}

absl::Status EventLoop::Add(int fd, uint32_t events, Handler handler) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = next_id_;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("epoll_ctl: ", std::strerror(errno)));
  }
  fd_of_id_[next_id_] = fd;
  watches_[fd] = Watch{next_id_, std::make_shared<Handler>(std::move(handler))};
  ++next_id_;
  return absl::OkStatus();
}

void EventLoop::SetEvents(int fd, uint32_t events) {
  const auto it = watches_.find(fd);
  if (it == watches_.end()) return;
  epoll_event event = {};
  event.events = events;
  event.data.u64 = it->second.id;
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void EventLoop::Remove(int fd) {
  const auto it = watches_.find(fd);
  if (it == watches_.end()) return;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  fd_of_id_.erase(it->second.id);
  watches_.erase(it);
}

void EventLoop::Post(std::function<void()> work) {
  {
    const absl::MutexLock lock(&mutex_);
    if (closed_) return;
    posted_.push_back({std::move(work), false});
  }
  Wake();
}

absl::Status EventLoop::PostRequest(std::function<void()> work) {
  {
    const absl::MutexLock lock(&mutex_);
    if (closed_) return absl::UnavailableError("epd is ending; retry");
    if (num_requests_ >= max_requests_) {
      return absl::ResourceExhaustedError(absl::StrCat("epd is overloaded: ", num_requests_,
                                                       " requests wait, its limit; retry later"));
    }
    ++num_requests_;
    posted_.push_back({std::move(work), true});
  }
  Wake();
  return absl::OkStatus();
}

void EventLoop::Wake() {
  const uint64_t one = 1;
  // A full counter wakes as well as one more.
  [[maybe_unused]] const ssize_t ignored = write(wake_.get(), &one, sizeof one);
}

void EventLoop::ClosePosts() {
  const absl::MutexLock lock(&mutex_);
  closed_ = true;
}

void EventLoop::RunPosted() {
  uint64_t count;
  [[maybe_unused]] const ssize_t ignored = read(wake_.get(), &count, sizeof count);
  std::deque<Posted> work;
  {
    const absl::MutexLock lock(&mutex_);
    work.swap(posted_);
    num_requests_ = 0;
  }
  for (Posted& one : work) one.run();
}

absl::Time EventLoop::Look() {
  const absl::Duration lost = t_time.Look(ClockNow());
  if (lost > absl::ZeroDuration()) {
    t_unsaid += lost;
    g_stood_still_ns.fetch_add(absl::ToInt64Nanoseconds(lost), std::memory_order_relaxed);
  }
  return MonotonicNow();
}

absl::Duration EventLoop::TakeStandstill() { return std::exchange(t_unsaid, absl::ZeroDuration()); }

void EventLoop::RunOnce(absl::Time deadline) {
  // Rounded up, or the loop would spin through the last millisecond.
  const absl::Duration nap = RunningTime::Nap(absl::Ceil(deadline - Look(), absl::Milliseconds(1)));
  const bool ends = nap != absl::InfiniteDuration();
  const int timeout_ms = ends ? static_cast<int>(absl::ToInt64Milliseconds(nap)) : -1;
  t_time.Sleeps(nap);
  std::array<epoll_event, 64> events;
  const int count =
      epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
  Look();
  bool posted = false;
  for (int i = 0; i < count; ++i) {
    const uint64_t id = events[static_cast<size_t>(i)].data.u64;
    if (id == 0) {
      posted = true;
      continue;
    }
    // An earlier handler of this turn may have removed it.
    const auto fd = fd_of_id_.find(id);
    if (fd == fd_of_id_.end()) continue;
    const std::shared_ptr<Handler> handler = watches_.at(fd->second).handler;
    (*handler)(events[static_cast<size_t>(i)].events);
  }
  if (posted) RunPosted();
}

}  // namespace epd
