// A thread for what takes too long for the exec thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>

#include "daemon/worker/shell/thread_slice.h"
#include "proto/machine/thread.h"

namespace epd {

// Runs what it is given, in order; drops the rest at its end.
class TaskThread {
 public:
  TaskThread() = default;
  ~TaskThread() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_one();
    if (thread_.joinable()) thread_.join();
  }
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;

  // Once, before Post. 0, or the errno of StartThread.
  int Start(const char* name) {
    return StartThread(
        {name}, [this] { Run(); }, &thread_);
  }

  void Post(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      work_.push_back(std::move(work));
    }
    changed_.notify_one();
  }

 private:
  void Run() {
    YieldToOthers();
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stop_ || !work_.empty(); });
      if (stop_) return;
      const std::function<void()> work = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      work();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  bool stop_ = false;
  Thread thread_;
};

}  // namespace epd
