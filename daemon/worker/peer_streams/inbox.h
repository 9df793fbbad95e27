// What reaches the exec thread from the streams, and how gRPC's threads hand it over.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/core/unique_fd.h"
#include "daemon/worker/engine/effects.h"
#include "daemon/worker/engine/peer_message.h"
#include "daemon/worker/peer_streams/held_rows.h"

namespace epd {

struct PeerSaid {
  Incarnation peer;
  PeerMessage message;
  std::optional<HeldRows> rows = {};  // Of a kRows.
};
struct PeerGone {
  Incarnation peer;
  absl::Status cause;
};
struct RowsCame {
  PeerOperation operation;
  Rank rank;
};
struct StageRefused {
  PeerOperation operation;
  Rank rank;
  absl::Status cause;
};
// Its certificate does not belong to this cluster, or it speaks another language.
struct PeerRefused {
  absl::Status why;
};

using WireEvent = std::variant<PeerSaid, PeerGone, RowsCame, StageRefused, PeerRefused>;

// Thread-safe; one thread takes.
class Inbox {
 public:
  Inbox() : wakeup_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!wakeup_.valid()) {
      status_ = absl::ResourceExhaustedError(absl::StrCat("eventfd: ", std::strerror(errno)));
    }
  }

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

  std::vector<WireEvent> Take() {
    // A look, of which each turn of the exec thread takes one, leaves the word to who puts.
    if (!full_.load(std::memory_order_acquire) || !full_.exchange(false)) return {};
    uint64_t count;
    [[maybe_unused]] const ssize_t ignored = read(wakeup_.get(), &count, sizeof count);
    const std::lock_guard lock(mutex_);
    return std::exchange(events_, {});
  }

  //   RESOURCE_EXHAUSTED  there was no descriptor left
  const absl::Status& status() const { return status_; }
  // Readable while there is something to take.
  int wakeup_fd() const { return wakeup_.get(); }

 private:
  const UniqueFd wakeup_;
  absl::Status status_;
  std::atomic<bool> full_{false};
  std::mutex mutex_;
  std::vector<WireEvent> events_;
};

}  // namespace epd
