// Says when epd ends: in order, at once, or because nobody uses it.
#pragma once

#include <utility>

#include "absl/time/time.h"

namespace epd {

//   RUNNING --BeginEnd()--> ENDING --BeginEnd() or Finish()--> ENDED
// Pure. Control thread.
class Lifetime {
 public:
  // `idle_exit`: how long it may be without a session; zero: for ever.
  Lifetime(absl::Duration idle_exit, absl::Time started)
      : idle_exit_(idle_exit), idle_since_(started) {}

  // True: the orderly end begins. The second call ends everything at once.
  bool BeginEnd() {
    if (ending_) hurried_ = ended_ = true;
    return !std::exchange(ending_, true);
  }
  // Whoever the orderly end waited for is gone.
  void Finish() { ended_ = true; }

  // Call often: whether it is time to end because there was no session for `idle_exit`.
  bool IsIdle(absl::Time now, bool has_sessions) {
    if (has_sessions) idle_since_ = now;
    return EndsWhenIdle() && now >= idle_since_ + idle_exit_;
  }
  // When IsIdle() may become true.
  absl::Time NextDeadline(bool has_sessions) const {
    return EndsWhenIdle() && !has_sessions ? idle_since_ + idle_exit_ : absl::InfiniteFuture();
  }

  bool ending() const { return ending_; }
  bool ended() const { return ended_; }
  // It was told twice to end.
  bool hurried() const { return hurried_; }

 private:
  bool EndsWhenIdle() const { return idle_exit_ > absl::ZeroDuration() && !ending_; }

  const absl::Duration idle_exit_;
  absl::Time idle_since_;
  bool ending_ = false;
  bool hurried_ = false;
  bool ended_ = false;
};

}  // namespace epd
