// std::mutex and std::condition_variable with the annotations that clang's thread-safety analysis
// reads (bazel --config=clang). Other compilers see plain classes.
//
//   Mutex mutex_;
//   int count_ EPD_GUARDED_BY(mutex_) = 0;
//   ...
//   MutexLock lock(mutex_);
//   ++count_;
//
// The analysis looks at each lambda by itself, so a predicate that reads guarded fields starts with
// mutex_.AssertHeld().
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define EPD_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define EPD_THREAD_ANNOTATION(x)
#endif

#define EPD_GUARDED_BY(x) EPD_THREAD_ANNOTATION(guarded_by(x))
#define EPD_REQUIRES(...) EPD_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define EPD_RETURN_CAPABILITY(x) EPD_THREAD_ANNOTATION(lock_returned(x))
#define EPD_EXCLUDES(...) EPD_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))

namespace epd::client {

class EPD_THREAD_ANNOTATION(capability("mutex")) Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() EPD_THREAD_ANNOTATION(acquire_capability()) { mutex_.lock(); }
  void Unlock() EPD_THREAD_ANNOTATION(release_capability()) { mutex_.unlock(); }
  // Tells the analysis, not the program, that this thread holds it.
  void AssertHeld() const EPD_THREAD_ANNOTATION(assert_capability(this)) {}

 private:
  friend class MutexLock;
  friend class CondVar;
  std::mutex mutex_;
};

// Holds a mutex for a scope; Unlock and Lock let go of it within. A leaf: none is held while a
// callback of somebody else runs.
class EPD_THREAD_ANNOTATION(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) EPD_THREAD_ANNOTATION(acquire_capability(mutex))
      : lock_(mutex.mutex_) {}
  ~MutexLock() EPD_THREAD_ANNOTATION(release_capability()) {}
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void Lock() EPD_THREAD_ANNOTATION(acquire_capability()) { lock_.lock(); }
  void Unlock() EPD_THREAD_ANNOTATION(release_capability()) { lock_.unlock(); }

 private:
  std::unique_lock<std::mutex> lock_;
};

// Waits with `mutex` held before and after.
class CondVar {
 public:
  void NotifyAll() { changed_.notify_all(); }

  // False: `deadline` passed. May also return true for no reason.
  bool WaitUntil(Mutex& mutex, std::chrono::steady_clock::time_point deadline) EPD_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool woken = changed_.wait_until(lock, deadline) != std::cv_status::timeout;
    lock.release();
    return woken;
  }
  // What `done()` says at the end.
  template <typename Done>
  bool WaitUntil(Mutex& mutex, std::chrono::steady_clock::time_point deadline, Done done)
      EPD_REQUIRES(mutex) {
    while (!done()) {
      if (!WaitUntil(mutex, deadline)) return done();
    }
    return true;
  }

 private:
  std::condition_variable changed_;
};

}  // namespace epd::client
