// Descriptors and times in proto/epd/v1/handover.proto.
#pragma once

#include <fcntl.h>
#include <linux/close_range.h>
#include <unistd.h>

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "daemon/core/unique_fd.h"
#include "daemon/node/loop/event_loop.h"

namespace epd {

// MonotonicNow()'s time, as the clock has it: the next program has not stood still yet.
inline int64_t PutTime(absl::Time time) {
  if (time == absl::InfiniteFuture()) return std::numeric_limits<int64_t>::max();
  if (time == absl::InfinitePast()) return std::numeric_limits<int64_t>::min();
  return absl::ToUnixNanos(time + StoodStill());
}
inline absl::Time GetTime(int64_t nanos) {
  if (nanos == std::numeric_limits<int64_t>::max()) return absl::InfiniteFuture();
  if (nanos == std::numeric_limits<int64_t>::min()) return absl::InfinitePast();
  return absl::FromUnixNanos(nanos) - StoodStill();
}

// The descriptors that the next program inherits. They stay their owners'.
class OutgoingFds {
 public:
  // The number to write down; 0 for one that is not valid.
  int Put(const UniqueFd& fd) { return Put(fd.get()); }
  int Put(const std::shared_ptr<UniqueFd>& fd) { return fd == nullptr ? 0 : Put(fd->get()); }
  int Put(int fd) {
    if (fd < 0) return 0;
    numbers_.insert(fd);
    return fd;
  }

  // Whether they survive an exec; nothing else does, but the standard ones.
  void SetInherited(bool inherited) const {
    close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC);
    for (const int fd : numbers_) fcntl(fd, F_SETFD, inherited ? 0 : FD_CLOEXEC);
  }

 private:
  std::set<int> numbers_;
};

// Those that this program has inherited. Whoever takes one owns it; from then on it is close-on-exec.
class IncomingFds {
 public:
  // `number` as it was written down, 0 gives an invalid one. Each number once.
  UniqueFd Take(int number) {
    if (number == 0) return UniqueFd();
    if (!taken_.insert(number).second) return Fail(number, "is named twice");
    if (fcntl(number, F_SETFD, FD_CLOEXEC) != 0) return Fail(number, "is not open");
    return UniqueFd(number);
  }
  // For those that have several owners: null for 0.
  std::shared_ptr<UniqueFd> Share(int number) {
    if (number == 0) return nullptr;
    std::shared_ptr<UniqueFd>& shared = shared_[number];
    if (shared == nullptr) shared = std::make_shared<UniqueFd>(Take(number));
    return shared;
  }

  // Once all are taken: those that are shared are their owners' alone.
  void Finish() { shared_.clear(); }

  // DATA_LOSS: one that was asked for was not there; names it.
  const absl::Status& status() const { return status_; }

 private:
  UniqueFd Fail(int number, const char* why) {
    status_.Update(absl::DataLossError(
        absl::StrCat("handover: descriptor ", number, " ", why, "; start epd anew")));
    return UniqueFd();
  }

  std::set<int> taken_;
  std::map<int, std::shared_ptr<UniqueFd>> shared_;
  absl::Status status_;
};

}  // namespace epd
