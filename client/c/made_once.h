// Values that take long to make, one for each key: who asks first makes it, without a lock, and who asks for the same
// key meanwhile waits; nobody else does.
#pragma once

#include <chrono>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "client/c/mutex.h"
#include "client/c/status.h"

namespace epd::client {

// Thread-safe. Keys are few and are kept in order.
template <typename Key, typename Value>
class MadeOnce {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // `good(const Value&)`: whether the value that is there will do; asked under the lock. Else
  // `Status make(Value*)`, without it: it finds the value that was there, and what it leaves is kept if it
  // says OK.
  //   DEADLINE_EXCEEDED  another thread has not made it in time
  //   else               what `make` says
  template <typename Good, typename Make>
  Status Get(const Key& key, TimePoint deadline, const Good& good, const Make& make, Value* value)
      EPD_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      if (!AwaitMade([&key](const Key& one) { return one == key; }, deadline)) return Late();
      const auto found = values_.find(key);
      if (found != values_.end() && good(found->second)) {
        *value = found->second;
        return {};
      }
      *value = found == values_.end() ? Value{} : std::move(found->second);
      if (found != values_.end()) values_.erase(found);
      making_.insert(key);
    }
    Status made;
    try {
      made = make(value);
    } catch (...) {
      Made(key);
      throw;
    }
    {
      MutexLock lock(mutex_);
      if (made.ok()) values_[key] = *value;
    }
    Made(key);
    return made;
  }

  // Those that are there.
  std::vector<std::pair<Key, Value>> All() EPD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return {values_.begin(), values_.end()};
  }

  // Takes the values of keys out for which `which(key)` holds, after waiting for those that are being made.
  template <typename Which>
  std::vector<Value> Take(const Which& which, TimePoint deadline) EPD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    AwaitMade(which, deadline);
    std::vector<Value> taken;
    for (auto it = values_.begin(); it != values_.end();) {
      if (!which(it->first)) {
        ++it;
        continue;
      }
      taken.push_back(std::move(it->second));
      it = values_.erase(it);
    }
    return taken;
  }

 private:
  void Made(const Key& key) EPD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    making_.erase(key);
    made_.NotifyAll();
  }
  static Status Late() {
    return {Code::kDeadlineExceeded, "another thread has not made it in time; try again"};
  }
  template <typename Which>
  bool AwaitMade(const Which& which, TimePoint deadline) EPD_REQUIRES(mutex_) {
    return made_.WaitUntil(mutex_, deadline, [&] {
      mutex_.AssertHeld();
      for (const Key& key : making_) {
        if (which(key)) return false;
      }
      return true;
    });
  }

  Mutex mutex_;
  CondVar made_;
  std::map<Key, Value> values_ EPD_GUARDED_BY(mutex_);
  std::set<Key> making_ EPD_GUARDED_BY(mutex_);
};

}  // namespace epd::client
