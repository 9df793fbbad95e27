// The newest figures, asked of the control thread when somebody wants them, and not too often.
#pragma once

#include <functional>
#include <memory>

#include "absl/time/time.h"
#include "proto/epd/v1/node.pb.h"

namespace epd {

// Thread-safe. However many ask, control has one question at a time and answers one in `fresh`; while it does not answer
// it is asked no more.
class FiguresCache {
 public:
  using Done = std::function<void(v1::GetFiguresResponse)>;
  // Calls `done` on any thread, now, later, or never; false: it does not.
  using Ask = std::function<bool(Done done)>;
  struct Limits {
    absl::Duration fresh = absl::Seconds(1);  // Figures serve for so long without a question.
    // For an answer. Twice what control waits for a worker that is stopped; and who scrapes each second, and waits for no
    // longer, is to have the last known, or a node that does not move looks to them as one that is not there.
    absl::Duration patience = absl::Milliseconds(600);
  };
  struct Answer {
    std::shared_ptr<const v1::GetFiguresResponse> figures;  // Null: there were never any.
    absl::Duration age;
    bool late = false;  // Control has not answered in time: these are the last known.
  };

  explicit FiguresCache(Ask ask) : FiguresCache(std::move(ask), Limits()) {}
  FiguresCache(Ask ask, Limits limits);

  // Blocks for at most `patience`.
  Answer Get();

 private:
  struct State;
  const Ask ask_;
  const Limits limits_;
  const std::shared_ptr<State> state_;  // An answer may come after this has ended.
};

}  // namespace epd
