// Whose memory the exec thread touches, where epd sees it. A user who makes a hole in his memory keeps whoever touches it there
// waiting in the kernel, and this thread is all users': then epd knows who it is (daemon/node/workers/hold_up.h).
#pragma once

#include <cstdint>

#include "proto/epd/v1/records_view.h"

namespace epd {

// Exec thread only. Borrows the records.
class TouchedUser {
 public:
  TouchedUser() = default;  // Nobody looks.
  explicit TouchedUser(const shm::RecordsView& records) : records_(records), seen_(true) {}

  // While it lives. Those within one another end in the other order.
  class [[nodiscard]] Scope;

 private:
  shm::RecordsView records_;
  bool seen_ = false;
};

class TouchedUser::Scope {
 public:
  Scope(const TouchedUser& touched, uint32_t uid) : touched_(touched) {
    if (!touched_.seen_) return;
    before_ = touched_.records_.touched();
    touched_.records_.SetTouched(shm::TouchedBy(uid));
  }
  ~Scope() {
    if (touched_.seen_) touched_.records_.SetTouched(before_);
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  const TouchedUser touched_;
  uint64_t before_ = 0;
};

}  // namespace epd
