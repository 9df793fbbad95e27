// Asks workers for what only they keep, when an operator wants to see it: the last operations of groups, and traces.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "daemon/core/ids.h"
#include "daemon/core/worker_name.h"
#include "proto/epd/v1/worker.pb.h"

namespace epd {

// `Answer` has the request_id of its question. Control thread.
template <typename Key, typename Answer>
class WorkerQuestions {
 public:
  // By what was asked for; without that of which no worker said anything in time.
  using Answers = std::map<Key, Answer>;
  using Done = std::function<void(const Answers&)>;
  using Send = std::function<void(const WorkerName& to, const v1::ToWorker&)>;
  struct Asked {
    Key key;
    WorkerName worker;
    std::function<v1::ToWorker(uint64_t request_id)> question;
  };

  explicit WorkerQuestions(Send send) : send_(std::move(send)) {}

  // `done` is called once: at once when `asked` is empty, else when all have been answered, or
  // after a short wait.
  void Ask(const std::vector<Asked>& asked, absl::Time now, Done done) {
    if (asked.empty()) return done({});
    const uint64_t first = next_;
    Open& open = open_[first];
    open.until = now + kPatience;
    open.done = std::move(done);
    for (const Asked& one : asked) open.awaited.emplace(next_++, one.key);
    for (size_t i = 0; i < asked.size(); ++i) send_(asked[i].worker, asked[i].question(first + i));
  }

  void Take(const Answer& answer) {
    for (auto it = open_.begin(); it != open_.end(); ++it) {
      const auto asked = it->second.awaited.find(answer.request_id());
      if (asked == it->second.awaited.end()) continue;
      it->second.answers[asked->second].MergeFrom(answer);
      it->second.awaited.erase(asked);
      if (!it->second.awaited.empty()) return;
      const Open ended = std::move(it->second);
      open_.erase(it);
      return ended.done(ended.answers);
    }
  }

  void Tick(absl::Time now) {
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

  absl::Time NextDeadline() const {
    absl::Time next = absl::InfiniteFuture();
    for (const auto& [number, open] : open_) next = std::min(next, open.until);
    return next;
  }

 private:
  // A worker answers in microseconds unless it is stopped or copies much.
  static constexpr absl::Duration kPatience = absl::Milliseconds(300);

  struct Open {
    std::map<uint64_t, Key> awaited;  // By the number of its question.
    Answers answers;
    absl::Time until;
    Done done;
  };

  Send send_;
  uint64_t next_ = 1;
  std::map<uint64_t, Open> open_;  // By the number of its first question.
};

using PastQuestions = WorkerQuestions<GroupId, v1::WorkerPast>;
using TraceQuestions = WorkerQuestions<WorkerName, v1::WorkerTrace>;

}  // namespace epd
