// Hands events from gRPC's threads to the exec thread.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "daemon/core/unique_fd.h"
#include "daemon/worker/peer_streams/wire_events.h"

namespace epd {

// Thread-safe; one thread takes.
class Inbox {
 public:
  Inbox() : wakeup_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  void Put(WireEvent event) {
    {
      const std::lock_guard lock(mutex_);
      events_.push_back(std::move(event));
    }
    // Whoever takes has said so before it looked a last time.
    if (full_.exchange(true)) return;
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t ignored = write(wakeup_.get(), &one, sizeof one);
  }

  bool empty() const { return !full_.load(std::memory_order_acquire); }

  std::vector<WireEvent> Take() {
    if (!full_.exchange(false)) return {};
    uint64_t count;
    [[maybe_unused]] const ssize_t ignored = read(wakeup_.get(), &count, sizeof count);
    const std::lock_guard lock(mutex_);
    return std::exchange(events_, {});
  }

  // Readable while there is something to take.
  int wakeup_fd() const { return wakeup_.get(); }

 private:
  const UniqueFd wakeup_;
  std::atomic<bool> full_{false};
  std::mutex mutex_;
  std::vector<WireEvent> events_;
};

}  // namespace epd
