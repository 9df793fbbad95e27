#include "daemon/node/workers/past_questions.h"

#include <algorithm>
#include <utility>

namespace epd {
namespace {

// A worker answers in microseconds unless it is stopped or copies much.
constexpr absl::Duration kPatience = absl::Milliseconds(300);

}  // namespace

void PastQuestions::Ask(const std::vector<Asked>& asked, uint32_t max_of_rank, absl::Time now,
                        Done done) {
  if (asked.empty()) return done({});
  const uint64_t first = next_;
  Open& open = open_[first];
  open.until = now + kPatience;
  open.done = std::move(done);
  for (const auto& [group, worker] : asked) {
    open.awaited[next_] = group;
    v1::ToWorker message;
    message.mutable_get_past()->set_request_id(next_++);
    message.mutable_get_past()->set_group_id(group.value);
    message.mutable_get_past()->set_max_operations(max_of_rank);
    send_(worker, message);
  }
}

void PastQuestions::Take(const v1::WorkerPast& past) {
  for (auto it = open_.begin(); it != open_.end(); ++it) {
    const auto asked = it->second.awaited.find(past.request_id());
    if (asked == it->second.awaited.end()) continue;
    it->second.answers[asked->second].MergeFrom(past);
    it->second.awaited.erase(asked);
    if (!it->second.awaited.empty()) return;
    const Open ended = std::move(it->second);
    open_.erase(it);
    return ended.done(ended.answers);
  }
}

void PastQuestions::Tick(absl::Time now) {
  std::vector<Open> late;
  for (auto it = open_.begin(); it != open_.end();) {
    if (it->second.until > now) {
      ++it;
      continue;
    }
    late.push_back(std::move(it->second));
    it = open_.erase(it);
  }
  for (const Open& open : late) open.done(open.answers);
}

absl::Time PastQuestions::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [number, open] : open_) next = std::min(next, open.until);
  return next;
}

}  // namespace epd
