// Work that waits for figures of the workers that are newer than its question.
#pragma once

#include <deque>
#include <functional>
#include <utility>

#include "absl/time/time.h"

namespace epd {

// Control thread.
class FreshFigures {
 public:
  // How long a question waits for a worker that may be stopped; well within the second that
  // epctl's user is promised.
  static constexpr absl::Duration kPatience = absl::Milliseconds(300);

  struct Workers {
    std::function<void(absl::Time now)> ask;
    // Whether one that can be waited for has not answered since `since`.
    std::function<bool(absl::Time since)> owe;
  };

  explicit FreshFigures(Workers workers) : workers_(std::move(workers)) {}

  // Asks all workers, and runs `work` once their figures are fresh, or after kPatience; at once
  // where nobody is to be waited for. What was asked first runs first.
  void Then(absl::Time now, std::function<void()> work);
  void Tick(absl::Time now);
  absl::Time NextDeadline() const;
  // Runs all that waits, with the figures that there are.
  void FinishAll();

 private:
  struct Waiting {
    absl::Time asked;
    std::function<void()> work;
  };

  const Workers workers_;
  std::deque<Waiting> waiting_;
};

}  // namespace epd
