// Threads on which operations wait: each takes one operation at a time, and there are always
// enough.
//
// What a framework does once an operation has ended may run the rest of its program there (XLA's
// futures do), which may wait for other operations. So no operation may queue behind another one: a
// thread is made whenever none is idle.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "client/c/mutex.h"
#include "client/c/status.h"

namespace epd::program {

// Thread-safe. Never destroyed while a thread lives: use Shared().
class Completer {
 public:
  // The one of this process, made at first use and leaked: programs may outlive main().
  static Completer& Shared();

  // Runs `work` on a thread of its own, at once.
  //   RESOURCE_EXHAUSTED  the system gives no further thread: which limits there are
  client::Status Run(std::function<void()> work);

  // Threads made so far. For tests.
  std::size_t num_threads() const;

 private:
  // An idle thread waits for its own hand-over, so that no thread can take another's wake-up.
  struct Worker {
    client::CondVar wake;
    std::function<void()> work;  // Guarded by the Completer's mutex.
  };

  void Loop(std::function<void()> work);

  mutable client::Mutex mutex_;
  // Last in, first out: its stack and caches are warm.
  std::vector<Worker*> idle_ EPD_GUARDED_BY(mutex_);
  std::size_t num_threads_ EPD_GUARDED_BY(mutex_) = 0;
};

}  // namespace epd::program
