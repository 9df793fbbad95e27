#include "daemon/node/workers/fresh_figures.h"

namespace epd {

void FreshFigures::Then(absl::Time now, std::function<void()> work) {
  workers_.ask(now);
  if (!workers_.owe(now)) return work();
  waiting_.push_back({now, std::move(work)});
}

void FreshFigures::Tick(absl::Time now) {
  // An answer to a question that was asked before does just as well: it is as fresh as the
  // heartbeat.
  while (!waiting_.empty()) {
    const absl::Time asked = waiting_.front().asked;
    if (now < asked + kPatience && workers_.owe(asked)) return;
    const std::function<void()> work = std::move(waiting_.front().work);
    waiting_.pop_front();
    work();
  }
}

absl::Time FreshFigures::NextDeadline() const {
  return waiting_.empty() ? absl::InfiniteFuture() : waiting_.front().asked + kPatience;
}

void FreshFigures::FinishAll() {
  for (const Waiting& waiting : std::exchange(waiting_, {})) waiting.work();
}

}  // namespace epd
