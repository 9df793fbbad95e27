// "Which thread owns this" as a type that clang's thread-safety analysis checks.
#pragma once

#include <atomic>
#include <cstdlib>
#include <thread>

#include "absl/base/thread_annotations.h"

namespace epd {

// State that belongs to one thread is ABSL_GUARDED_BY(role_); functions that touch it say
// ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_); the thread's entry points (event handlers) begin with
// role_.AssertHeld(). Costs one comparison per entry; nothing is locked.
class ABSL_LOCKABLE ThreadRole {
 public:
  // The calling thread takes the role. Call once, before the first AssertHeld().
  void Take() ABSL_ASSERT_EXCLUSIVE_LOCK() { owner_.store(std::this_thread::get_id()); }

  // Ends the process when another thread calls: that is a bug of ours which would corrupt the
  // state.
  void AssertHeld() const ABSL_ASSERT_EXCLUSIVE_LOCK() {
    if (owner_.load(std::memory_order_relaxed) != std::this_thread::get_id()) std::abort();
  }

 private:
  std::atomic<std::thread::id> owner_{std::this_thread::get_id()};
};

}  // namespace epd
