// epoll with handlers, a queue of work from other threads, and one deadline per turn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/core/unique_fd.h"

namespace epd {

// The time of epd's loop (daemon/core/running_time.h): what deadlines are of, and whatever is compared with them. Never jumps, not
// even when epd was stopped for a while. Comparable only with itself, in this process.
absl::Time MonotonicNow();
// CLOCK_MONOTONIC: what other processes of this machine read, and what goes on while epd is stopped. MonotonicNow() is behind it by
// StoodStill().
absl::Time ClockNow();
absl::Duration StoodStill();

// All members but Post() and PostRequest() belong to the thread that runs the loop.
class EventLoop {
 public:
  using Handler = std::function<void(uint32_t epoll_events)>;

  // `max_requests`: how much of PostRequest() may wait.
  explicit EventLoop(size_t max_requests = 4096);

  // Watches `fd` (not owned) for EPOLL* `events`, level-triggered.
  //   RESOURCE_EXHAUSTED  the kernel's limit of watches or memory
  absl::Status Add(int fd, uint32_t events, Handler handler);
  void SetEvents(int fd, uint32_t events);
  // Handlers may remove any descriptor, their own too. Call before closing it.
  void Remove(int fd);

  // Runs `work` on the loop's thread, in order. Thread-safe. For what has happened, which must not be
  // lost: never refused until the loop is closed, so whoever posts bounds by itself how often.
  void Post(std::function<void()> work);
  // Likewise for what somebody asks, who can be told no.
  //   RESOURCE_EXHAUSTED  too many requests wait already: retry later
  //   UNAVAILABLE         the loop is closed
  absl::Status PostRequest(std::function<void()> work);
  // No more posts.
  void ClosePosts();
  // Runs what is queued, without waiting for anything.
  void RunPosted();

  // Waits until something happens or `deadline`, for a moment at most (standstill::kTick), and runs the handlers.
  void RunOnce(absl::Time deadline);
  // MonotonicNow(), once it is known whether the loop was stopped since it last looked.
  absl::Time Look();
  // How long it did not run since somebody asked.
  absl::Duration TakeStandstill();

 private:
  struct Watch {
    uint64_t id;
    std::shared_ptr<Handler> handler;
  };

  UniqueFd epoll_;
  UniqueFd wake_;
  uint64_t next_id_ = 1;  // 0 stands for wake_.
  std::map<int, Watch> watches_;
  std::map<uint64_t, int> fd_of_id_;

  struct Posted {
    std::function<void()> run;
    bool request;
  };
  void Wake();

  const size_t max_requests_;
  absl::Mutex mutex_;
  std::deque<Posted> posted_ ABSL_GUARDED_BY(mutex_);
  size_t num_requests_ ABSL_GUARDED_BY(mutex_) = 0;  // Of `posted_`.
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace epd
