// What other threads ask of the thread that owns an election.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/store/leadership.h"

namespace epd {

// As long as this node leads with `revision`, keep exactly `values` for its successors; `kept` is
// called once they are. `refused`, which may be null, is called each time that the store answers and
// does not take them; they are tried again.
struct KeepRequest {
  int64_t revision = 0;
  KeptValues values;
  std::function<void()> kept;
  std::function<void(const absl::Status&)> refused = nullptr;
};

// Thread-safe.
class ElectionInbox {
 public:
  struct Taken {
    bool woken = false;               // Since the last call.
    bool resign = false;              // Likewise.
    std::vector<Leadership> refused;  // Coordinators that refuse connections.
    std::optional<KeepRequest> keep;  // The newest.
  };

  void Wake() {
    const absl::MutexLock lock(&mutex_);
    content_.woken = true;
  }
  void Refuse(const Leadership& leader) {
    const absl::MutexLock lock(&mutex_);
    content_.refused.push_back(leader);
    content_.woken = true;
  }
  void Resign() {
    const absl::MutexLock lock(&mutex_);
    content_.resign = true;
    content_.woken = true;
  }
  void Keep(KeepRequest request) {
    const absl::MutexLock lock(&mutex_);
    content_.keep = std::move(request);
    content_.woken = true;
  }
  // Ends all waits, and cancels the watch.
  void Stop() {
    const absl::MutexLock lock(&mutex_);
    stopping_ = true;
    if (cancel_watch_) cancel_watch_();
  }
  bool stopping() {
    const absl::MutexLock lock(&mutex_);
    return stopping_;
  }

  // ---- the election's thread ----
  // Returns when there is something to do, at the end, or after `timeout`.
  void Wait(absl::Duration timeout) {
    const absl::MutexLock lock(&mutex_);
    const auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return stopping_ || content_.woken;
    };
    mutex_.AwaitWithTimeout(absl::Condition(&due), timeout);
  }
  Taken Take() {
    const absl::MutexLock lock(&mutex_);
    return std::exchange(content_, {});
  }
  // Puts one back that could not be carried out, unless there is a newer one.
  void PutBack(KeepRequest request) {
    const absl::MutexLock lock(&mutex_);
    if (!content_.keep.has_value()) content_.keep = std::move(request);
  }

  // ---- the watch's thread ----
  // False: stopping. Stop() calls `cancel` from now on until EndWatch().
  bool BeginWatch(std::function<void()> cancel) {
    const absl::MutexLock lock(&mutex_);
    if (!stopping_) cancel_watch_ = std::move(cancel);
    return !stopping_;
  }
  void EndWatch() {
    const absl::MutexLock lock(&mutex_);
    cancel_watch_ = nullptr;
  }
  void RestUntilStopped(absl::Duration timeout) {
    const absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&stopping_), timeout);
  }

 private:
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  Taken content_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> cancel_watch_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace epd
